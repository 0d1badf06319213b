"""Files, their rows and statistics, and uploads."""

"""The training process: trains one run directory."""

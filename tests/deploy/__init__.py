"""docker/ without an engine: what the files say, and the service run as they say it."""

"""Chaos tests: SIGKILL at random times. `make chaos` runs the long form."""

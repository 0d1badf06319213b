"""The run directory: interface between supervisor and trainer. Never imports torch."""

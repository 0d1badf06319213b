"""The run directory: the contract between supervisor and trainer. Never imports torch."""

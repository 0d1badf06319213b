"""The run directory: interface between supervisor and trainer. This package never imports torch."""

"""Access to the inference server, which answers chat and completion requests."""

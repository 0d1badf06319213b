"""HTTP API and job state. The server never imports torch, because training runs in the worker."""

"""HTTP API and job state. Never imports torch: training runs in the worker."""

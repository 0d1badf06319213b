"""HTTP API and job state. Knows nothing of torch: what computes lives in the worker."""

"""All that computes: the trainer process, and the worker that supervises it."""

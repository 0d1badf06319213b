"""The trainer process, and the worker process that supervises the trainer."""

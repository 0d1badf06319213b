"""`tunesmith demo`: train a small model, and compare the model before and after training.

The demo is the only package of the worker that uses the SDK."""

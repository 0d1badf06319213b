"""`tunesmith demo`: train a small model and compare it before and after.

The demo is the only package of the worker that uses the SDK."""

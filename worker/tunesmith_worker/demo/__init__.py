"""`tunesmith demo`: train a small model and compare it before and after.

No other package of the worker uses the SDK."""

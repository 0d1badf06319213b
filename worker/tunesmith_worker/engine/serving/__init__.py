"""Serving engine: generates for many requests at the same time, with several adapters on a base
model."""

"""Serving engine: generates for many requests at once, with several adapters on a base model."""

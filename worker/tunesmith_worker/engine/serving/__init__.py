"""Serving engine: generates completions for many requests at once, with several adapters on one
base model."""

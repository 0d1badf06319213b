"""Base models, adapters, and their evaluations."""

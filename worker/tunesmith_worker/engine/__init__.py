"""Code that computes on a model and does not depend on jobs."""

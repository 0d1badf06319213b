"""Everything that computes on a model and knows no job."""

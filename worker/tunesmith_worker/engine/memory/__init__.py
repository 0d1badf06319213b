"""Planning, measuring and limiting the memory of training."""

"""Evaluation of a run's result after training: base, tuned and best weights on the same rows."""

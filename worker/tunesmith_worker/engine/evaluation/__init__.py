"""Evaluation of models on rows: losses, greedy answers, and comparison with confidence intervals.

The functions of this folder do not use jobs: they take models, rows of token ids and numbers."""

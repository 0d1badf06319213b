"""Evaluation of models on rows: losses, greedy answers, and comparison with confidence intervals.

The code in this folder does not depend on jobs: its functions take models and token ids."""

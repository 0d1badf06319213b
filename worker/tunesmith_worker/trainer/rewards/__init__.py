"""Rewards of reinforcement tuning: the spec's grader, and reward functions of one's own."""

from .grading import ErrorsTold, Grading, Round
from .local import LocalReward
from .protocol import Graded, Prompt, Sample
from .templates import MissingField, missing_fields

__all__ = [
    "ErrorsTold",
    "Graded",
    "Grading",
    "LocalReward",
    "MissingField",
    "Prompt",
    "Round",
    "Sample",
    "missing_fields",
]

"""Rewards of reinforcement tuning: the job's grader and local reward functions."""

from .grading import Grading, GradingWarnings, Round
from .local import LocalReward
from .protocol import CompletionText, Graded, Prompt
from .templates import MissingField, missing_fields

__all__ = [
    "CompletionText",
    "Graded",
    "Grading",
    "GradingWarnings",
    "LocalReward",
    "MissingField",
    "Prompt",
    "Round",
    "missing_fields",
]

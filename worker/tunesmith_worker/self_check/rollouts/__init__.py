"""Proof that a reinforcement run's rollouts are drawn from what it trains.

`checks.py` is the main path; one file for each kind of fault. `RolloutTripwires` watch the run.
"""

from .checks import check_rollouts, reinforcement_checks
from .subject import Prompt, ReinforcementSubject, Row, Score
from .tripwires import RolloutTripwires, StepFigures

__all__ = [
    "Prompt",
    "ReinforcementSubject",
    "RolloutTripwires",
    "Row",
    "Score",
    "StepFigures",
    "check_rollouts",
    "reinforcement_checks",
]

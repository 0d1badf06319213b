"""Proof before the first step, and along the way, that a run learns what it should.

`self_check` is the main path; one file for each group of checks. What only reinforcement runs need
lies in rollouts/.
"""

from .check_context import Subject
from .checks import Checks, self_check, supervised_checks
from .findings import Finding, settle
from .tripwires import Tripwires

__all__ = [
    "Checks",
    "Finding",
    "Subject",
    "Tripwires",
    "self_check",
    "settle",
    "supervised_checks",
]

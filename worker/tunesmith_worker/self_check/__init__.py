"""Proof before the first step, and along the way, that a run learns what it should.

`self_check` is the main path; one file for each group of checks.
"""

from .checks import self_check
from .findings import Finding, settle
from .subject import Subject
from .tripwires import Tripwires

__all__ = ["Finding", "Subject", "Tripwires", "self_check", "settle"]

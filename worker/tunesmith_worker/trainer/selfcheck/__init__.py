"""Checks that a run can learn: the self-check before step 1, and checks during training
(tripwires).

Start reading at `checks.self_check`; every other file holds one group of checks.
"""

from .check_context import SupervisedContext
from .checks import Checks, self_check, supervised_checks
from .findings import Finding, report_findings
from .tripwires import Tripwires

__all__ = [
    "Checks",
    "Finding",
    "SupervisedContext",
    "Tripwires",
    "report_findings",
    "self_check",
    "supervised_checks",
]

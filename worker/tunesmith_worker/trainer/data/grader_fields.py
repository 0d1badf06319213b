"""Whether every row has what a grader's templates read, found before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tunesmith_schema import ErrorCategory, ErrorCode, Grader
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer.rewards import missing_fields

if TYPE_CHECKING:
    from .prompts import PromptRow


def check_fields(grader: Grader, rows: Sequence[PromptRow], name: str) -> None:
    """`rows`: of the file `name`. Raises RunError at the first field that one lacks."""
    missing = missing_fields(grader, (row.item for row in rows))
    if not missing:
        return
    first = missing[0]
    raise RunError(
        ErrorCode.GRADER_INVALID,
        f"{name}, row {rows[first.first].number}: {first}; so it is with {first.rows} of "
        f"{len(rows)} rows.",
        category=ErrorCategory.GRADER,
        hint="Mend the rows, or the name in the grader's template.",
        param="method.reinforcement.grader",
    )

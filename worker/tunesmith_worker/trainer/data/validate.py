"""What an uploaded file can be used for: every row is looked at as each method would read it.

No torch and no tokenizer here: a light worker runs it.
"""

from __future__ import annotations

from pathlib import Path

from tunesmith_schema import BadRows, FileValidation, MethodName, RowProblem

from .formats import Row
from .prompt_formats import Asked
from .prompt_rows import PromptChecker
from .records import Record, read_records
from .rows import Checker, Checks

MAX_PROBLEMS = 20


def validate_file(path: Path, filename: str) -> FileValidation:
    """`filename` is what the user called it. The first 20 bad rows are named."""
    rows, prompts = Checker(), PromptChecker()
    supervised, reinforcement = _Reading(rows), _Reading(prompts)
    readings: dict[MethodName, _Reading] = {
        "supervised": supervised,
        "reinforcement": reinforcement,
    }
    total = 0
    for record in read_records(path, filename):
        total += 1
        for reading in readings.values():
            reading.take(record)
    if total == 0:
        for reading in readings.values():
            reading.refuse(RowProblem(row=1, message="the file has no rows"))
    usable = [method for method, reading in readings.items() if reading.bad == 0]
    meant = reinforcement if supervised.good == 0 < reinforcement.good else supervised
    shown = BadRows(problems=[], num_problems=0) if usable else meant.problems()
    return FileValidation(
        ok=bool(usable),
        usable_for=[*usable],
        refused={method: r.problems() for method, r in readings.items() if r.bad},
        format=rows.format,
        prompt_format=prompts.format,
        rows=total,
        problems=shown.problems,
        num_problems=shown.num_problems,
    )


class _Reading:
    """The records as one method reads them."""

    def __init__(self, checker: Checks[Row] | Checks[Asked]) -> None:
        self._checker = checker
        self._first: list[RowProblem] = []
        self.good = self.bad = 0

    def take(self, record: Record) -> None:
        outcome = self._checker.check(record)
        if isinstance(outcome, RowProblem):
            self.refuse(outcome)
        else:
            self.good += 1

    def refuse(self, problem: RowProblem) -> None:
        self.bad += 1
        if len(self._first) < MAX_PROBLEMS:
            self._first.append(problem)

    def problems(self) -> BadRows:
        return BadRows(problems=self._first, num_problems=self.bad)

"""Validation of an uploaded file: checks every row for each training method.

This module imports no torch and no tokenizer, because it runs in light workers (workers that only
validate uploads).
"""

from __future__ import annotations

from pathlib import Path

from tunesmith_schema import BadRows, FileValidation, MethodName, RowProblem

from .formats import Row
from .prompt_formats import ParsedPrompt
from .prompt_rows import PromptChecker
from .records import Record, read_records
from .rows import Checker, RowChecker
from .statistics import RowStatistics

MAX_PROBLEMS = 20


def validate_file(
    path: Path, filename: str, statistics: RowStatistics | None = None
) -> FileValidation:
    """Return the methods that can use the file, and the first 20 bad rows; add each row to
    `statistics`. `filename`: name that the user gave the file."""
    rows, prompts = RowChecker(), PromptChecker()
    supervised, reinforcement = _MethodCheck(rows), _MethodCheck(prompts)
    checks: dict[MethodName, _MethodCheck] = {
        "supervised": supervised,
        "reinforcement": reinforcement,
    }
    total = 0
    for record in read_records(path, filename):
        total += 1
        if statistics is not None:
            statistics.add(record)
        for check in checks.values():
            check.add(record)
    if total == 0:
        for check in checks.values():
            check.add_problem(RowProblem(row=1, message="the file has no rows"))
    usable = [method for method, check in checks.items() if check.bad == 0]
    closest = reinforcement if supervised.good == 0 < reinforcement.good else supervised
    shown = BadRows(problems=[], num_problems=0) if usable else closest.problems()
    return FileValidation(
        ok=bool(usable),
        usable_for=[*usable],
        refused={method: c.problems() for method, c in checks.items() if c.bad},
        format=rows.format,
        prompt_format=prompts.format,
        rows=total,
        problems=shown.problems,
        num_problems=shown.num_problems,
    )


class _MethodCheck:
    def __init__(self, checker: Checker[Row] | Checker[ParsedPrompt]) -> None:
        self._checker = checker
        self._first: list[RowProblem] = []
        self.good = self.bad = 0

    def add(self, record: Record) -> None:
        outcome = self._checker.check(record)
        if isinstance(outcome, RowProblem):
            self.add_problem(outcome)
        else:
            self.good += 1

    def add_problem(self, problem: RowProblem) -> None:
        self.bad += 1
        if len(self._first) < MAX_PROBLEMS:
            self._first.append(problem)

    def problems(self) -> BadRows:
        return BadRows(problems=self._first, num_problems=self.bad)

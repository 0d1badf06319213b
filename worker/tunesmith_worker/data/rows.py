"""Training rows: reads a data file, finds its row format, checks every row, makes them uniform.

No torch and no tokenizer here: a light worker validates uploads with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tunesmith_schema import FileValidation, RowFormat, RowProblem

from ..errors import DataError
from .formats import COLUMNS, BadRow, Row, detect, parse
from .records import Record, read_records

MAX_PROBLEMS = 20
Good = TypeVar("Good", covariant=True)


class Checks(Protocol[Good]):
    """What tells good records from bad ones."""

    def check(self, record: Record) -> Good | RowProblem: ...


@dataclass(frozen=True)
class RowFile:
    format: RowFormat
    rows: list[Row]


def validate_file(path: Path, filename: str) -> FileValidation:
    """What is in an uploaded file; the first 20 bad rows are named."""
    checker = Checker()
    problems: list[RowProblem] = []
    bad = total = 0
    for record in read_records(path, filename):
        total += 1
        outcome = checker.check(record)
        if isinstance(outcome, RowProblem):
            bad += 1
            if len(problems) < MAX_PROBLEMS:
                problems.append(outcome)
    if total == 0:
        bad, problems = 1, [RowProblem(row=1, message="the file has no rows")]
    return FileValidation(
        ok=bad == 0, format=checker.format, rows=total, problems=problems, num_problems=bad
    )


def read_rows(path: Path) -> RowFile:
    """All rows for training; the first bad one ends the run, naming itself."""
    checker = Checker()
    rows = list(good_rows(checker, read_records(path, path.name), path.name))
    if checker.format is None:
        raise no_rows(path.name)
    return RowFile(checker.format, rows)


def good_rows(checker: Checks[Good], records: Iterable[Record], name: str) -> Iterator[Good]:
    """Raises DataError at the first bad row, naming it and the file."""
    for record in records:
        outcome = checker.check(record)
        if isinstance(outcome, RowProblem):
            raise DataError(
                f"{name}, row {outcome.row}: {outcome.message}",
                hint="Mend the row and upload the file again.",
            )
        yield outcome


def no_rows(name: str) -> DataError:
    return DataError(f"{name} has no rows.", hint="Upload a file with at least one row.")


class Checker:
    """Checks records one by one; the first recognisable one sets the file's format, unless it is
    known already."""

    def __init__(self, format: RowFormat | None = None) -> None:
        self.format = format

    def check(self, record: Record) -> Row | RowProblem:
        try:
            return self._parse(record)
        except BadRow as error:
            return RowProblem(row=record.number, message=str(error))

    def _parse(self, record: Record) -> Row:
        if record.problem is not None:
            raise BadRow(record.problem)
        found = detect(record.value)
        if self.format is None:
            self.format = found
        # A row may have the columns of several formats: what the file started with decides.
        if found != self.format and not _fits(record.value, self.format):
            raise BadRow(f"is a '{found}' row, but the file started with '{self.format}' rows")
        return parse(record.number, record.value, self.format)


def _fits(value: dict[str, object], format: RowFormat) -> bool:
    return all(value.get(column) is not None for column in COLUMNS[format])

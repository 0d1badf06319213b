"""Training rows of a data file: format detection, checks, and conversion to `Row`.

This module imports no torch and no tokenizer, because it also runs in light workers (workers that
only validate uploads).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from tunesmith_schema import RowFormat, RowProblem
from tunesmith_worker.rundir.errors import DataError

from .formats import COLUMNS, BadRow, Row, detect, parse
from .records import Record, read_records

Good = TypeVar("Good", covariant=True)


class Checker(Protocol[Good]):
    """Check of one record: returns the parsed row or the problem."""

    def check(self, record: Record) -> Good | RowProblem: ...


@dataclass(frozen=True)
class RowFile:
    format: RowFormat
    rows: list[Row]


def read_rows(path: Path) -> RowFile:
    """Return all rows. Raises DataError at the first bad row."""
    checker = RowChecker()
    rows = list(good_rows(checker, read_records(path, path.name), path.name))
    if checker.format is None:
        raise empty_file_error(path.name)
    return RowFile(checker.format, rows)


def good_rows(checker: Checker[Good], records: Iterable[Record], name: str) -> Iterator[Good]:
    """Yield the parsed rows. `name`: file name for messages. Raises DataError at a bad row."""
    for record in records:
        outcome = checker.check(record)
        if isinstance(outcome, RowProblem):
            raise DataError(
                f"{name}, row {outcome.row}: {outcome.message}",
                hint="Fix the row and upload the file again.",
            )
        yield outcome


def empty_file_error(name: str) -> DataError:
    return DataError(f"{name} has no rows.", hint="Upload a file with at least one row.")


class RowChecker:
    """Check of training rows. The first row with a known format sets the format of the file, unless
    the format is given."""

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
        format = detect(record.value)
        if self.format is None:
            self.format = format
        # A row may have the columns of several formats. The format of the file wins.
        if format != self.format and not _fits(record.value, self.format):
            raise BadRow(f"is a '{format}' row, but the file started with '{self.format}' rows")
        return parse(record.number, record.value, self.format)


def _fits(value: dict[str, object], format: RowFormat) -> bool:
    return all(value.get(column) is not None for column in COLUMNS[format])

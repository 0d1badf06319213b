"""Training rows: reads a data file, finds its row format, checks every row, makes them uniform.

No torch and no tokenizer here: a light worker validates uploads with it (validate.py).
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


class Checks(Protocol[Good]):
    """What tells good records from bad ones."""

    def check(self, record: Record) -> Good | RowProblem: ...


@dataclass(frozen=True)
class RowFile:
    format: RowFormat
    rows: list[Row]


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

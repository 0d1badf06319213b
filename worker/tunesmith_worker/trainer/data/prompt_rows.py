"""Prompts of a data file, checked: what rows.py is for training rows. No torch and no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from tunesmith_schema import PromptFormat, RowProblem

from .formats import BadRow
from .prompt_formats import PROMPT_COLUMNS, Asked, detect_prompt, parse_prompt
from .records import Record, read_records
from .rows import good_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    number: int
    """Of its row, as the user counts them."""
    prompt_ids: tuple[int, ...]
    item: Mapping[str, JsonValue]
    """All fields of the row."""
    text: str
    """What `prompt_ids` say, the template's own words included."""


class PromptChecker:
    """Checks records one by one; the first recognisable one sets the file's format."""

    def __init__(self) -> None:
        self.format: PromptFormat | None = None

    def check(self, record: Record) -> Asked | RowProblem:
        try:
            return self._parse(record)
        except BadRow as error:
            return RowProblem(row=record.number, message=str(error))

    def _parse(self, record: Record) -> Asked:
        if record.problem is not None:
            raise BadRow(record.problem)
        found = detect_prompt(record.value)
        if self.format is None:
            self.format = found
        # A row may have the columns of several formats: what the file started with decides.
        if record.value.get(PROMPT_COLUMNS[self.format]) is None:
            raise BadRow(f"is a '{found}' row, but the file started with '{self.format}' rows")
        return parse_prompt(record.number, record.value, self.format)


def read_prompt_rows(path: Path, name: str) -> Iterator[Asked]:
    """Raises DataError at the first bad row, naming it and the file."""
    return good_rows(PromptChecker(), read_records(path, path.name), name)

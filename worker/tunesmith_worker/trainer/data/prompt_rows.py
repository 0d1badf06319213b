"""Prompt rows of a data file and their checks. This module imports no torch and no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from tunesmith_schema import PromptFormat, RowProblem

from .formats import BadRow
from .prompt_formats import PROMPT_COLUMNS, ParsedPrompt, detect_prompt, parse_prompt
from .records import Record, read_records
from .rows import good_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """One prompt of a reinforcement run, tokenised."""

    number: int
    """Number of the row in the file, starting at 1."""
    prompt_ids: tuple[int, ...]
    item: Mapping[str, JsonValue]
    """All fields of the row."""
    text: str
    """Text of `prompt_ids`, including the chat template's tokens."""


class PromptChecker:
    """Check of prompt rows. The first row with a known format sets the format of the file."""

    def __init__(self) -> None:
        self.format: PromptFormat | None = None

    def check(self, record: Record) -> ParsedPrompt | RowProblem:
        try:
            return self._parse(record)
        except BadRow as error:
            return RowProblem(row=record.number, message=str(error))

    def _parse(self, record: Record) -> ParsedPrompt:
        if record.problem is not None:
            raise BadRow(record.problem)
        format = detect_prompt(record.value)
        if self.format is None:
            self.format = format
        # A row may have the columns of several formats. The format of the file wins.
        if record.value.get(PROMPT_COLUMNS[self.format]) is None:
            raise BadRow(f"is a '{format}' row, but the file started with '{self.format}' rows")
        return parse_prompt(record.number, record.value, self.format)


def read_prompt_rows(path: Path, name: str) -> Iterator[ParsedPrompt]:
    """Yield the prompts. `name`: file name for messages. Raises DataError at the first bad row."""
    return good_rows(PromptChecker(), read_records(path, path.name), name)

"""Row formats of prompts. Each parsed row has a prompt, and all fields of the row for graders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue

from tunesmith_schema import PromptFormat

from .formats import (
    BadRow,
    Message,
    Row,
    read_instruction,
    read_messages,
    read_question,
    read_text,
    read_tools,
    valid_text,
)

PROMPT_COLUMNS: Mapping[PromptFormat, str] = MappingProxyType(
    {
        PromptFormat.MESSAGES: "messages",
        PromptFormat.PROMPT: "prompt",
        PromptFormat.INSTRUCTION: "instruction",
        PromptFormat.QUESTION: "question",
    }
)
"""Required column of each format. `detect_prompt` tries the formats in this order."""
_COLUMN_NAMES = ", ".join(f"'{name}'" for name in PROMPT_COLUMNS.values())


@dataclass(frozen=True, kw_only=True)
class ParsedPrompt:
    """One row of a prompt file."""

    row: Row
    """The prompt, without an answer. `row.text` is None for a conversation, and an empty string for
    other prompts."""
    item: Mapping[str, JsonValue]
    """All fields of the row, as JSON."""


def detect_prompt(value: Any) -> PromptFormat:  # Any: one record of a file
    if not isinstance(value, dict):
        raise BadRow(f"is a {type(value).__name__}, must be an object with named columns")
    for format, column in PROMPT_COLUMNS.items():
        if value.get(column) is not None:
            return format
    if null := next((name for name in PROMPT_COLUMNS.values() if name in value), None):
        raise BadRow(f"{null} is null")
    raise BadRow(
        f"has the columns {', '.join(repr(name[:40]) for name in list(value)[:8]) or '(none)'}: "
        f"needs one of {_COLUMN_NAMES}"
    )


def parse_prompt(
    number: int,
    value: dict[str, Any],  # Any: JSON
    format: PromptFormat,
) -> ParsedPrompt:
    return ParsedPrompt(row=_row(number, value, format), item=_item(value))


def _row(number: int, value: dict[str, Any], format: PromptFormat) -> Row:  # Any: JSON
    match format:
        case PromptFormat.MESSAGES:
            return _conversation(number, "messages", value)
        case PromptFormat.PROMPT:
            if isinstance(value["prompt"], list):
                return _conversation(number, "prompt", value)
            return Row(number=number, prompt=read_text(value, "prompt"), text="")
        case PromptFormat.INSTRUCTION:
            return _single_turn(number, *read_instruction(value))
        case PromptFormat.QUESTION:
            return _single_turn(number, *read_question(value))


def _conversation(number: int, column: str, value: dict[str, Any]) -> Row:  # Any: JSON
    messages = read_messages(column, value[column])
    if messages[-1].role == "assistant":
        raise BadRow(
            f"{column} ends with an assistant turn, so there is nothing to generate: end {column} "
            "before the answer, and put the answer into another column for the grader"
        )
    first = next((m.role for m in messages if m.role in ("assistant", "tool")), None)
    if first == "tool":
        raise BadRow(f"{column} has a tool message before the first assistant message")
    return Row(number=number, messages=messages, tools=read_tools(value))


def _single_turn(number: int, question: str, prompt: str) -> Row:
    messages = (Message(role="user", content=question),)
    return Row(number=number, messages=messages, prompt=prompt, text="")


def _item(value: dict[str, Any]) -> dict[str, JsonValue]:  # Any: JSON or Parquet values
    return {
        valid_text("the name of a column", name): _json(name, field)
        for name, field in value.items()
        if not isinstance(field, bytes)  # graders do not read bytes, such as images
    }


def _json(where: str, value: Any) -> JsonValue:  # Any: JSON or Parquet values
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return valid_text(where, value)
    if isinstance(value, list):
        return [_json(f"{where}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {valid_text(where, str(k)): _json(f"{where}.{k}", item) for k, item in value.items()}
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise BadRow(f"{where} is a {type(value).__name__}, which JSON cannot hold")

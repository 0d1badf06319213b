"""Options that take a JSON object, as text or as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from .session import without_errno


def read_json_object(path: Path, option: str) -> dict[str, Any]:  # Any: JSON
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(without_errno(error), param_hint=option) from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text", param_hint=option) from None
    return parse_json_object(text, str(path), option)


def parse_json_object(text: str, source: str, option: str) -> dict[str, Any]:  # Any: JSON
    """Parse `text`. Errors name `source` and quote the invalid line."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1] if text.splitlines() else ""
        raise typer.BadParameter(
            f"{source} is not JSON: {error.msg}, line {error.lineno}: {line.strip()[:60]!r}",
            param_hint=option,
        ) from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{source} is not a JSON object", param_hint=option)
    return value

"""The option `--grader FILE.json` or `--grader '{"type": ...}'`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .json_option import parse_json_object, read_json_object

GraderOption = Annotated[
    str | None,
    typer.Option(
        "--grader",
        metavar="FILE|JSON",
        help="Grader for completions, as JSON or a JSON file. This option selects reinforcement.",
    ),
]

_NAME = "--grader"


def read_grader(text: str | None) -> dict[str, Any] | None:  # Any: JSON
    """Parse the option's value. The schema of the request checks the grader's fields later."""
    if text is None:
        return None
    if text.lstrip().startswith("{"):
        return parse_json_object(text, "the value", _NAME)
    return read_json_object(Path(text), _NAME)

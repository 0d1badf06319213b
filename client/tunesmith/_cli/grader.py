"""`--grader FILE.json` or `--grader '{"type": ...}'`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

GraderOption = Annotated[
    str | None,
    typer.Option(
        "--grader",
        metavar="FILE|JSON",
        help="What scores completions: a JSON file, or JSON itself. Makes it reinforcement.",
    ),
]

_NAME = "--grader"


def read_grader(given: str | None) -> dict[str, Any] | None:  # Any: JSON
    """Only the form is checked here: the schema knows the graders."""
    if given is None:
        return None
    inline = given.lstrip().startswith("{")
    try:
        grader = json.loads(given if inline else Path(given).read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint=_NAME) from None
    except ValueError as error:
        where = "it" if inline else given
        raise typer.BadParameter(f"{where} is not JSON: {error}", param_hint=_NAME) from None
    if not isinstance(grader, dict):
        raise typer.BadParameter(f"{given} holds no JSON object", param_hint=_NAME)
    return grader

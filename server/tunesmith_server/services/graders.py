"""What of a grader needs a library to be checked, before a job waits with it in the queue."""

from __future__ import annotations

import jsonschema_rs
from pydantic import JsonValue

from tunesmith_schema import ErrorCode, Grader, MultiGrader

from ..errors import BadRequest


def check(grader: Grader) -> None:
    """Raises BadRequest where a JSON Schema is none."""
    for one in grader.by_name.values() if isinstance(grader, MultiGrader) else [grader]:
        if one.type == "json_schema":
            _check_schema(one.name, one.json_schema)


def _check_schema(name: str, schema: dict[str, JsonValue]) -> None:
    """As the worker's grader reads it."""
    try:
        jsonschema_rs.Draft202012Validator(schema, offline=True, validate_formats=True)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        what = str(error).partition("\n")[0][:500]
        raise BadRequest(
            ErrorCode.GRADER_INVALID,
            f"method.reinforcement.grader: the json_schema of {name!r} is not valid: {what}",
            param="method.reinforcement.grader",
            hint="it must be JSON Schema, draft 2020-12",
        ) from error

"""Validation of a create request without creating a job; the answer has all reasons for a
refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from tunesmith_schema import JobCreate, MethodName, RequestProblem
from tunesmith_server.core.errors import ServiceError
from tunesmith_server.core.settings import Settings
from tunesmith_server.models.owned import DEFAULT_PROJECT
from tunesmith_server.models.scope import project_of
from tunesmith_server.scheduling import limits

from .. import quotas
from ..catalogue import base_models
from . import job_create

_MAX_ROUNDS = 50
"""Maximum number of times that a body is validated. With each validation, unknown fields are found
one level deeper in nested objects."""


def split_fields(body: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the valid fields of a body, and pydantic's errors for the other fields.

    An object with an unknown field is not validated further. Therefore unknown fields are removed,
    and the body is validated again.
    """
    rest, found = copy.deepcopy(body), list[dict[str, Any]]()
    errors = _errors(rest)
    for _ in range(_MAX_ROUNDS):
        unknown = [error for error in errors if error["type"] == "unknown_field"]
        removed = [error for error in unknown if _remove(rest, error)]
        if not removed:
            break
        found += removed
        errors = _errors(rest)
    invalid = {error["loc"][0] for error in errors if error["loc"]}
    if any(error["type"] == "unknown_field" and not error["loc"] for error in errors):
        invalid = {*rest}  # the other fields were not validated
    fields = {name: value for name, value in rest.items() if name not in invalid}
    return fields, [*found, *errors]


def _errors(body: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        JobCreate.model_validate(body)
    except ValidationError as error:
        return [dict(item) for item in error.errors(include_url=False)]
    return []


def _remove(body: dict[str, Any], error: Mapping[str, Any]) -> bool:
    place: Any = body
    for part in error["loc"]:
        with suppress(KeyError, IndexError, TypeError):  # tags of unions are no keys
            place = place[part]
    name = error["ctx"]["field"]
    return isinstance(place, dict) and place.pop(name, error) is not error


def find_problems(
    session: Session, settings: Settings, fields: Mapping[str, Any], *, owner: str
) -> list[RequestProblem]:
    """Return the reasons why `job_create.create` would refuse a request. `fields` has the valid
    fields of the body as JSON; other fields are not checked further."""
    checks: list[Callable[[], object]] = [partial(quotas.check, session, 0)]
    if "model" in fields:
        checks.append(partial(base_models.choose, session, settings, fields["model"]))
    method: MethodName = (fields.get("method") or {}).get("type", "supervised")
    for name in ("training_file", "validation_file"):
        if fields.get(name) is not None:
            usable = partial(job_create.usable_file, session, fields[name], name, method)
            checks.append(usable)
    project_id = project_of(session) or DEFAULT_PROJECT
    checks.append(partial(limits.check_create, session, project_id, owner))
    found = (refusal(check) for check in checks)
    return [problem for problem in found if problem is not None]


def refusal(check: Callable[[], object]) -> RequestProblem | None:
    """Run a check of the request, and return its error; None if the check passes."""
    try:
        check()
    except ServiceError as error:
        return RequestProblem(
            param=error.param, message=error.message, code=error.code, hint=error.hint
        )
    return None

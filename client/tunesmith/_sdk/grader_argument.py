"""`grader=...`: the short way to say that a job is reinforcement."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tunesmith._http.errors import InvalidArgumentError


def with_grader(given: dict[str, Any], grader: Any) -> dict[str, Any]:  # Any: JSON, or models of it
    """The arguments of a create with the grader in its `method`. It takes the hyperparameters
    along, as reinforcement has more of them than a request without `method` may hold."""
    if grader is None:
        return given
    if given["method"] is not None:
        raise InvalidArgumentError(
            "grader and method both say how to train: give one",
            hint="grader=G is method={'type': 'reinforcement', 'reinforcement': {'grader': G}}",
        )
    knobs = given["hyperparameters"]
    if isinstance(knobs, BaseModel):
        knobs = knobs.model_dump(mode="json", exclude_unset=True)
    member = {"grader": grader, "hyperparameters": knobs}
    method = {"type": "reinforcement", "reinforcement": {k: v for k, v in member.items() if v}}
    return {**given, "method": method, "hyperparameters": None}

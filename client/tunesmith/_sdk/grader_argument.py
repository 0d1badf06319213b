"""The argument `grader=...` for a new job: it selects reinforcement tuning with this grader."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tunesmith._http.errors import InvalidArgumentError


def with_grader(
    arguments: dict[str, Any],  # Any: JSON, or models of the schema
    grader: Any,  # Any: JSON, or a model of the schema
) -> dict[str, Any]:
    """Move `grader` and the hyperparameters into `method`, because only `method` accepts the
    hyperparameters of reinforcement."""
    if grader is None:
        return arguments
    if arguments["method"] is not None:
        raise InvalidArgumentError(
            "set grader or method, not both",
            hint="grader=G is short for "
            "method={'type': 'reinforcement', 'reinforcement': {'grader': G}}",
        )
    hyperparameters = arguments["hyperparameters"]
    if isinstance(hyperparameters, BaseModel):
        hyperparameters = hyperparameters.model_dump(mode="json", exclude_unset=True)
    fields = {"grader": grader, "hyperparameters": hyperparameters}
    method = {"type": "reinforcement", "reinforcement": {k: v for k, v in fields.items() if v}}
    return {**arguments, "method": method, "hyperparameters": None}

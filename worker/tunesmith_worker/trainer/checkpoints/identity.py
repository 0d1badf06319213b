"""Inputs that a resume point depends on, and their comparison with a run's inputs. This module
imports no torch."""

from __future__ import annotations

import json
from typing import Any

from pydantic import JsonValue, ValidationError

from tunesmith_schema import Hyperparameters, Recipe, RunSpec
from tunesmith_schema.versions import installed_version
from tunesmith_worker.rundir.fingerprint import fingerprint
from tunesmith_worker.rundir.paths import RunDirectory, file_hash
from tunesmith_worker.rundir.resume_point import RunIdentity

Json = dict[str, Any]  # Any: JSON

_LIBRARIES = ("tunesmith", "torch", "transformers", "trl", "peft")


def made_for(run: RunDirectory, spec: RunSpec) -> RunIdentity:
    validation = spec.validation_file
    return RunIdentity(
        model=spec.model,
        base_model=fingerprint(spec.model_path),
        training_file=file_hash(run.root / spec.training_file),
        validation_file=file_hash(run.root / validation) if validation else None,
        seed=spec.seed,
        recipe=spec.recipe.model_dump(mode="json"),
        hyperparameters=spec.hyperparameters.model_dump(mode="json"),
        method=spec.method,
        grader=spec.grader and spec.grader.model_dump(mode="json"),
    )


def made_with() -> dict[str, str]:
    return {name: installed_version(name) for name in _LIBRARIES}


def differences(then: RunIdentity, now: RunIdentity) -> list[tuple[str, str]]:
    """Return the name of each changed field of the job request, such as `method.type`, and a
    description of the change."""
    changes: list[tuple[str, str]] = []
    for name, text in (
        ("training_file", "the training file has changed"),
        ("validation_file", "the validation file has changed"),
        ("base_model", "the base model's files have changed"),
    ):
        if getattr(then, name) != getattr(now, name):
            changes.append(("model" if name == "base_model" else name, text))
    for name in ("model", "seed"):
        before, after = getattr(then, name), getattr(now, name)
        if before != after:
            changes.append((name, f"changed from {before!r} to {after!r}"))
    changes += _changed("recipe", _current_form(Recipe, then.recipe), now.recipe)
    changes += _changed(
        "hyperparameters", _current_form(Hyperparameters, then.hyperparameters), now.hyperparameters
    )
    changes += _changed("method.type", then.method, now.method)
    changes += _changed("method.reinforcement.grader", then.grader, now.grader)
    return changes


def _current_form(model: type[Recipe | Hyperparameters], saved: Json) -> Json:
    """Convert saved settings to this version's fields; new fields get their defaults."""
    try:
        return model.model_validate(saved).model_dump(mode="json")
    except ValidationError:  # this version lacks a saved field; the comparison names the field
        return saved


def _changed(prefix: str, then: JsonValue, now: JsonValue) -> list[tuple[str, str]]:
    if isinstance(then, dict) and isinstance(now, dict):
        names = sorted(then.keys() | now.keys())
        both = [_changed(f"{prefix}.{name}", then.get(name), now.get(name)) for name in names]
        return [change for changes in both for change in changes]
    if then == now:
        return []
    return [(prefix, f"changed from {json.dumps(then)} to {json.dumps(now)}")]

"""Comparison of a job's settings with the defaults, and with the settings of other jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from .jobs import Job
from .recipe import Recipe
from .report import JobReport

Settings = dict[str, Any]  # Any: JSON; dotted name -> value


def changed_settings(job: Job) -> Settings:
    """Return the settings that differ from the defaults; the keys are dotted names. If the API left
    the recipe out because it is too large for a list, return no settings."""
    if "recipe" in job.omitted:
        return {}
    parts = {name: part for name, part in job.recipe if isinstance(part, BaseModel)}
    defaults = Recipe().model_dump(mode="json") | {
        name: type(part).model_construct().model_dump(mode="json") for name, part in parts.items()
    }
    default = _flat(defaults)
    chosen = _flat(job.recipe.model_dump(mode="json", exclude_none=True))
    changed = {name: value for name, value in chosen.items() if default.get(name) != value}
    changed |= {
        name: value
        for name, value in job.hyperparameters.model_dump(mode="json").items()
        if value not in ("auto", None)
    }
    if grader := _grader(job):
        changed["grader"] = grader
    return changed


def differing_settings(jobs: Sequence[Job]) -> dict[str, list[Any]]:  # Any: JSON
    """Return the settings in which jobs differ, each with the values of all jobs. The keys are
    dotted names."""
    every: list[Settings] = [
        {
            "model": job.model,
            "method": (job.method or {}).get("type", "supervised"),
            "training_file": job.training_file,
            "validation_file": job.validation_file,
            **_flat(job.recipe.model_dump(mode="json", exclude_none=True)),
            **job.hyperparameters.model_dump(mode="json"),
            "grader": _grader(job),
            "seed": job.seed,
        }
        for job in jobs
    ]
    return differing(every)


def differing(every: Sequence[Settings]) -> dict[str, list[Any]]:
    """Return each name whose value differs between the given settings, with the list of its values.
    A missing value is None."""
    names = list(dict.fromkeys(name for settings in every for name in settings))
    rows = {name: [settings.get(name) for settings in every] for name in names}
    return {name: row for name, row in rows.items() if any(value != row[0] for value in row)}


def automatic_values(report: JobReport | None) -> Settings:
    """Return the values that were chosen for "auto"; the keys are names of settings."""
    return {choice.name: choice.value for choice in report.choices} if report else {}


def environment_values(report: JobReport | None) -> Settings:
    """Return device, host and library versions of an attempt; the keys are dotted names."""
    if report is None:
        return {}
    return {"device": report.device, "host": report.host, **_flat({"versions": report.versions})}


def _grader(job: Job) -> str | None:
    grader = ((job.method or {}).get("reinforcement") or {}).get("grader")
    return str(grader.get("type")) if isinstance(grader, dict) else None


def _flat(document: Mapping[str, Any], prefix: str = "") -> Settings:
    flat: Settings = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat

"""Marks on the axis of the curves: evaluations, checkpoints, resume points, forks, warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

from tunesmith_schema import Checkpoint, Event, EventKind, JobLineage, StoredResumePoint

MOST = 60
"""Maximum number of marks of one kind."""
_EVALUATIONS = 24
"""Number of newest evaluations that get a mark; the curve shows all evaluations."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Mark of an event at a step of the run."""

    step: int
    kind: str
    """Kind of the mark: evaluation, checkpoint, resume_point, resumed, paused, fork, warning or
    stalled."""
    text: str
    href: str
    fork_step: int | None = None
    """Step of the resume point at or before the mark, from which a fork can start."""
    model: str = ""
    """Model of a checkpoint. Empty for other marks and for a deleted model."""


def marks(
    *,
    checkpoints: Iterable[Checkpoint],
    lineage: JobLineage,
    told: Iterable[Event],
    step_at: Callable[[Event], int | None],
    points: Sequence[StoredResumePoint],
    evaluations: Mapping[int, str],
) -> list[Mark]:
    """Return the marks in order of their steps. `told`: warnings, and events of the kinds `state`,
    `resumed` and `stalled`. `step_at`: function that returns the step during which an event
    happened. `points`: resume points, newest first. `evaluations`: texts by step."""
    models = {result.adapter_id: result.model for result in lineage.results}
    found = [_checkpoint(point, models) for point in list(checkpoints)[:MOST]]
    found += [
        Mark(step=point.step, kind="resume_point", text="Resume point", href="#files")
        for point in points[:MOST]
    ]
    found += [
        Mark(step=step, kind="evaluation", text=text, href="#h-curves")
        for step, text in list(evaluations.items())[-_EVALUATIONS:]
    ]
    for fork in lineage.forks:
        if fork.step is not None:
            name = fork.name or fork.suffix or fork.id
            href = f"/portal/jobs/{fork.id}"
            found.append(Mark(step=fork.step, kind="fork", text=f"Fork: {name}", href=href))
    for event in told:
        kind = _kind_of(event)
        step = step_at(event) if kind else None
        if kind and step is not None:
            href = f"#event-{event.seq}"
            found.append(Mark(step=step, kind=kind, text=event.message[:200], href=href))
    steps = [point.step for point in points]
    forked = (replace(mark, fork_step=_at_or_before(steps, mark.step)) for mark in found)
    return sorted(forked, key=lambda mark: (mark.step, mark.kind))


def _checkpoint(point: Checkpoint, models: Mapping[str, str]) -> Mark:
    """Return the mark of a checkpoint. `models`: names of the stored models by adapter id."""
    model = models.get(point.adapter_id or "", "")
    return Mark(
        step=point.step_number,
        kind="checkpoint",
        text="Checkpoint",
        href=f"/portal/models/{quote(model)}" if model else "#files",
        model=model,
    )


def _at_or_before(steps: Sequence[int], wanted: int) -> int | None:
    return next((step for step in steps if step <= wanted), None)


def _kind_of(event: Event) -> str:
    if event.kind == EventKind.RESUMED:
        return "resumed"
    if event.kind == EventKind.STALLED:
        return "stalled"
    if event.kind == EventKind.STATE and event.data.get("state") == "paused":
        return "paused"
    return "warning" if event.level in ("warn", "error") else ""

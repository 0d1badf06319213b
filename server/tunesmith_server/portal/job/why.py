"""Reasons for a job's state: why it waits or failed, its warnings, its bottleneck, and advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith_schema import EstimatedStart, Event, HealthState, Job, JobReport, JobState

from . import recipes

_MOST_WARNINGS = 4
_BAD_HEALTH = {
    HealthState.DIVERGED: "bad",
    HealthState.OVERFITTING: "hold",
    HealthState.BARELY_MOVED: "hold",
    HealthState.NO_REWARD_SPREAD: "hold",
}


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Answer to one question about the job."""

    tone: str
    """Tone of the answer: the last part of the class `is-...` in app.css."""
    title: str
    text: str
    hint: str = ""
    code: str = ""
    start: EstimatedStart | None = None
    """Expected start of a waiting job."""
    action: str = ""
    """Action of the reason's button: `retry` or `fork`; empty for no button."""
    field: str = ""
    """Recipe field that the fork changes; empty for none."""
    value: str = ""


def reasons(job: Job, report: JobReport | None, warnings: Sequence[Event]) -> list[Reason]:
    """Return the reasons that explain the job's current state. `warnings`: newest events of the
    levels `warn` and `error`, newest first."""
    found = [*_waits(job), *_failure(job), *_health(job)]
    known = {reason.text for reason in found}
    for event in warnings:
        if len(found) >= _MOST_WARNINGS + 1:
            break
        if event.message not in known:
            known.add(event.message)
            tone, title = ("bad", "Error") if event.level == "error" else ("hold", "Warning")
            found.append(Reason(tone=tone, title=title, text=event.message))
    return [*found, *_bound(job, report)]


def _waits(job: Job) -> list[Reason]:
    if job.waiting_because is None:
        return []
    title = "Why it waits"
    if job.queue_position:
        title += f": number {job.queue_position} in the queue"
    because = job.waiting_because
    return [
        Reason(
            tone="wait",
            title=title,
            text=because.message,
            code=because.code,
            start=job.estimated_start,
        )
    ]


def _failure(job: Job) -> list[Reason]:
    if job.error is None or not (job.error.code or job.error.message):
        return []
    return [
        Reason(
            tone="bad",
            title="Why it failed",
            text=job.error.message or "",
            hint=job.error.hint or "",
            code=job.error.code or "",
            action="retry" if job.state == JobState.FAILED else "",
        )
    ]


def _health(job: Job) -> list[Reason]:
    if job.health is None or job.health.state not in _BAD_HEALTH:
        return []
    state = HealthState(job.health.state)
    title = state.replace("_", " ").capitalize()
    return [Reason(tone=_BAD_HEALTH[state], title=title, text=job.health.text)]


def _bound(job: Job, report: JobReport | None) -> list[Reason]:
    if report is None:
        return []
    by = report.bound.by.replace("_", " ")
    found = [Reason(tone="info", title=f"Bottleneck: {by}", text=report.bound.text)]
    if report.advice.rule != "none":
        field, value = recipes.advised(report.advice.text) or ("", "")
        found.append(
            Reason(
                tone="info",
                title="Most useful change",
                text=report.advice.text,
                action="fork" if field and job.step else "",
                field=field,
                value=value,
            )
        )
    return found

"""Views of a job: all fields, the summary after its end, and two lines in a list."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from tunesmith._http.hints import in_commands, in_python
from tunesmith._sdk.job import Job
from tunesmith_schema import (
    TERMINAL,
    ErrorCategory,
    EstimatedStart,
    HealthState,
    JobReport,
    JobState,
)
from tunesmith_schema.settings_diff import automatic_values, changed_settings

from .output import age, duration, health_word, moment, show_fields, size

COLOURS = {
    str(HealthState.LEARNING): "green",
    str(HealthState.DIVERGED): "red",
    str(HealthState.OVERFITTING): "yellow",
    str(HealthState.BARELY_MOVED): "yellow",
    str(HealthState.NO_REWARD_SPREAD): "red",
}
_STATE_WIDTH = 26


def show_job(job: Job, report: JobReport | None = None) -> None:
    """Print all fields of a job; `report` has the values that were chosen for "auto"."""
    error = job.error
    show_fields(
        [
            ("id", job.id),
            ("name", job.name or job.suffix),
            ("notes", job.notes),
            ("state", state_text(job)),
            ("requested", _requested(job)),
            ("waits because", job.waiting_because and job.waiting_because.message),
            ("queue position", job.queue_position),
            ("expected start", start_text(job.estimated_start)),
            ("scheduling", _scheduling(job)),
            ("health", health_text(job)),
            ("evaluation", evaluation_text(job)),
            ("model", job.model),
            ("tuned model", job.fine_tuned_model),
            ("adapter", job.adapter_id),
            ("method", job.method and job.method.get("type")),
            ("recipe", _recipe(job)),
            ("auto became", _pairs(automatic_values(report))),
            ("step", step_text(job)),
            ("last metrics", metrics_text(job)),
            ("trained tokens", job.trained_tokens),
            ("training file", job.training_file),
            ("validation file", job.validation_file),
            ("metrics file", ", ".join(job.result_files)),
            ("seed", job.seed),
            ("attempt", job.attempt or None),
            ("starts from", job.forked_from and f"step {job.forked_step} of {job.forked_from}"),
            ("retry of", job.retry_of),
            ("metadata", ", ".join(f"{k}={v}" for k, v in (job.metadata or {}).items())),
            ("owner", job.owner),
            ("created", moment(job.created_at)),
            ("started", moment(job.started_at)),
            ("finished", moment(job.finished_at)),
            ("duration", duration_text(job)),
            ("error", error and error.message),
            ("hint", error and error.hint and in_commands(in_python(error.hint))),
            ("next", "\n".join(next_commands(job))),
        ]
    )


def show_summary(job: Job) -> None:
    """Print the result of an ended job, its health, its evaluation and the next commands."""
    show_fields(
        [
            ("id", job.id),
            ("state", state_text(job)),
            ("tuned model", job.fine_tuned_model),
            ("adapter", job.adapter_id),
            ("health", health_text(job)),
            ("evaluation", evaluation_text(job)),
            ("step", step_text(job)),
            ("last metrics", metrics_text(job)),
            ("duration", duration_text(job)),
            ("metadata", ", ".join(f"{k}={v}" for k, v in (job.metadata or {}).items())),
            ("next", "\n".join(next_commands(job))),
        ]
    )


def show_jobs(jobs: Iterable[Job]) -> None:
    """Print jobs in two lines each, in at most 80 columns."""
    console = Console(markup=False, highlight=False, emoji=False)
    console.print(Text(f"{'ID':<32}{'STATE':<{_STATE_WIDTH}}HEALTH", style="bold"))
    for job in jobs:
        line = Text(f"{job.id}  ".ljust(32), no_wrap=True)
        line.append(f"{state_text(job)}  ".ljust(_STATE_WIDTH), _state_style(job))
        if job.health:
            line.append(health_word(job.health), COLOURS.get(str(job.health.state), ""))
        console.print(line)
        parts = [
            f"{method_of(job)} of {job.model}", metrics_text(job), _steps(job),
            duration_text(job), job.owner and f"by {job.owner}", f"{age(job.created_at)} ago",
        ]  # fmt: skip
        about = Text(overflow="fold")
        if job.suffix:
            about.append(f"{job.suffix}: ", "bold")
        about.append(", ".join(part for part in parts if part), "dim")
        console.print(Padding(about, (0, 0, 0, 2)))


def next_commands(job: Job) -> Sequence[str]:
    """Return the commands that most users need next, at most two.

    A retry that would fail for the same reason is left out.
    """
    if job.state is JobState.SUCCEEDED and _is_healthy(job):
        return (
            f"tunesmith chat {job.fine_tuned_model} --against base",
            f"tunesmith adapters download {job.id} DIR",
        )
    if job.state is JobState.SUCCEEDED:
        return f"tunesmith jobs plot {job.id}", f"tunesmith jobs report {job.id}"
    category = job.error.category if job.error else None
    if category is ErrorCategory.DATA:
        return f"tunesmith files show {job.training_file}", f"tunesmith jobs logs {job.id}"
    if category in (ErrorCategory.USER, ErrorCategory.GRADER):
        return (f"tunesmith jobs logs {job.id}",)
    if job.state in TERMINAL:
        return f"tunesmith jobs logs {job.id}", f"tunesmith jobs retry {job.id}"
    if job.state is JobState.PAUSED:
        return f"tunesmith jobs resume {job.id}", f"tunesmith jobs cancel {job.id}"
    return f"tunesmith jobs watch {job.id}", f"tunesmith jobs cancel {job.id}"


def health_text(job: Job) -> str | None:
    return f"{health_word(job.health)}: {job.health.text}" if job.health else None


def evaluation_text(job: Job) -> str | None:
    """Return the verdict of the job's evaluation; None without an evaluation."""
    return None if job.evaluation is None else job.evaluation.verdict


def state_text(job: Job) -> str:
    return f"{job.state} ({job.phase})" if job.phase else str(job.state)


def step_text(job: Job) -> str:
    if job.total_steps is None:
        return str(job.step or "")
    return f"{job.step}/{job.total_steps}"


def duration_text(job: Job) -> str | None:
    """Return the time from the first start of a job to its end, or until now if the job has not
    ended."""
    if job.started_at is None:
        return None
    return duration((job.finished_at or time.time()) - job.started_at)


def metrics_text(job: Job) -> str:
    """Return the last rewards of a reinforcement job, or the last losses of another job, as
    text."""
    names = {"reward": "reward", "valid_reward": "valid"}
    if "reward" not in job.last_metrics:
        names = {"train_loss": "loss", "valid_loss": "valid"}
    return ", ".join(
        f"{shown} {_number(job.last_metrics[name])}"
        for name, shown in names.items()
        if name in job.last_metrics
    )


def method_of(job: Job) -> str:
    return str((job.method or {}).get("type", "supervised"))


def start_text(start: EstimatedStart | None) -> str | None:
    """Return the expected, earliest and latest start of a waiting job, as text."""
    if start is None:
        return None
    seconds = [max(0, at - int(time.time())) for at in (start.at, start.earliest, start.latest)]
    at, earliest, latest = (duration(one) for one in seconds)
    return f"in {at}" if earliest == latest else f"in {at} ({earliest} to {latest})"


def _scheduling(job: Job) -> str:
    asked = job.scheduling
    parts = [
        f"priority {asked.priority}" if asked.priority else "",
        "interactive" if asked.interactive else "",
        *(f"{name}={value}" for name, value in asked.worker_labels.items()),
        f"{size(asked.device_bytes)} of device memory" if asked.device_bytes else "",
    ]
    return ", ".join(part for part in parts if part)


def _recipe(job: Job) -> str:
    if "recipe" in job.omitted:
        return ""
    return _pairs(changed_settings(job)) or "defaults"


def _pairs(settings: dict[str, Any]) -> str:  # Any: JSON
    return "\n".join(f"{name}={setting_text(value)}" for name, value in settings.items())


def _requested(job: Job) -> str | None:
    if job.state in TERMINAL:
        return None
    return "cancel" if job.cancel_requested else "stop" if job.stop_requested else None


def _steps(job: Job) -> str:
    steps = step_text(job)
    return f"step {steps}" if steps else ""


def _is_healthy(job: Job) -> bool:
    return job.health is None or job.health.state in (HealthState.LEARNING, HealthState.UNCLEAR)


def _state_style(job: Job) -> str:
    if job.state is JobState.SUCCEEDED:
        return "green"
    return "red" if job.state is JobState.FAILED else ""


def _number(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.4g}"


def setting_text(value: Any) -> str:  # Any: JSON
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

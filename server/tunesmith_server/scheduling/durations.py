"""Estimates of durations. The remaining time of a running job is estimated from its progress, and
the time of a waiting job from jobs that have ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import JobState
from tunesmith_server.models import JobRow
from tunesmith_server.models.scope import all_projects

from .lanes import INTERACTIVE_SECONDS
from .snapshot import Running, Waiting
from .speed import seconds_per_step

UNKNOWN_SECONDS = 3600.0
"""Assumed device-time of a job if no job has ended yet."""
MAX_EXAMPLES = 1000
"""Number of the newest ended jobs from which estimates are made."""
MIN_REMAINING_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Example:
    """Device-time of a job that succeeded."""

    project_id: str
    model: str
    method: str
    training_file: str
    seconds: float


class Durations:
    """Expected device-times. An estimate uses the first of these groups that has an example: same
    model, method and training file; same project, model and method; same model and method; any
    job."""

    def __init__(self, examples: Iterable[Example], *, factor: float = 1.0) -> None:
        """`factor` multiplies each time that is not estimated from the job's own speed, for an
        early or a late forecast (view.py)."""
        groups: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for one in examples:
            for group in _groups(one):
                groups[group].append(one.seconds)
        self._medians = {group: median(seconds) for group, seconds in groups.items()}
        self._factor = factor

    def expected(self, job: Waiting) -> float:
        """Return the device-seconds that a waiting job will take."""
        per_step = job.done_seconds / job.step if job.step and job.done_seconds else None
        if per_step is not None and job.total_steps:  # a job that continues from a resume point
            return max(MIN_REMAINING_SECONDS, per_step * (job.total_steps - job.step))
        return self._usual(job) * self._factor

    def remaining(self, job: Running, now: float) -> float:
        """Return the expected number of seconds until a running job ends. If `known_remaining`
        returns None, the value is an assumption."""
        left = self.known_remaining(job, now)
        if left is None:
            left = self._usual(job) * self._factor - (now - job.claimed_at)
        return max(MIN_REMAINING_SECONDS, left)

    def known_remaining(self, job: Running, now: float) -> float | None:
        """Return the expected number of seconds until a running job ends. The estimate uses the
        job's own speed, or else jobs that have ended. Return None if neither is known, or if the
        job has already taken longer than the estimate from the jobs that have ended."""
        per_step = seconds_per_step(job, now)
        if per_step is not None and job.total_steps:
            return max(MIN_REMAINING_SECONDS, per_step * (job.total_steps - job.step))
        usual = self._example(job)
        left = 0.0 if usual is None else usual * self._factor - (now - job.claimed_at)
        return left if left > 0 else None

    def _usual(self, job: Waiting) -> float:
        seconds = self._example(job)
        if seconds is not None:
            return seconds
        return INTERACTIVE_SECONDS / 2 if job.interactive else UNKNOWN_SECONDS

    def _example(self, job: Waiting) -> float | None:
        return next((self._medians[one] for one in _groups(job) if one in self._medians), None)


def _groups(job: Example | Waiting) -> tuple[tuple[str, ...], ...]:
    return (
        ("file", job.model, job.method, job.training_file),
        ("project", job.project_id, job.model, job.method),
        ("model", job.model, job.method),
        (),
    )


def examples(session: Session) -> list[Example]:
    """Return the device-times of the newest jobs that succeeded."""
    newest = (
        select(
            JobRow.project_id, JobRow.model, JobRow.method_name, JobRow.training_file,
            JobRow.device_seconds,
        )
        .where(JobRow.state == JobState.SUCCEEDED, JobRow.device_seconds > 0)
        .order_by(JobRow.queued_at.desc())
        .limit(MAX_EXAMPLES)
    )  # fmt: skip
    rows = session.execute(all_projects(newest))
    return [
        Example(
            project_id=project_id, model=model, method=method, training_file=file, seconds=seconds
        )
        for project_id, model, method, file, seconds in rows
    ]

"""Commands that a job accepts in its current state: pause, resume, stop, cancel, retry, fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunesmith_schema import TERMINAL, Job, JobState, StoredResumePoint

_MOVING = (JobState.RUNNING, JobState.PAUSING)


@dataclass(frozen=True, kw_only=True)
class Order:
    """Command to a job, shown as a button in the page's header."""

    verb: str
    """Last part of the API route, such as `pause`."""
    label: str
    question: str = ""
    """Title of the confirmation; empty if no confirmation is needed."""
    stays: str = ""
    """Text of the confirmation that tells which results the command keeps and which are lost."""
    key: str = ""
    """Keyboard key that triggers the command."""

    @property
    def is_danger(self) -> bool:
        return self.verb == "cancel"


def orders(
    job: Job, name: str, points: Sequence[StoredResumePoint], num_checkpoints: int
) -> list[Order]:
    """Return the commands that the state of the job allows."""
    return [
        *_pausing(job),
        *_ending(job, name, bool(points), num_checkpoints),
        *_again(job, name, bool(points)),
    ]


def under_way(job: Job) -> str:
    """Return a text about a command that the job's worker has not yet executed."""
    if job.state not in _MOVING:
        return ""
    if job.cancel_requested:
        return "Cancelling"
    return "Stopping after the next step" if job.stop_requested else ""


def _pausing(job: Job) -> list[Order]:
    if job.state in (JobState.PAUSING, JobState.PAUSED):
        return [] if job.cancel_requested else [Order(verb="resume", label="Resume", key="p")]
    is_ending = job.stop_requested or job.cancel_requested
    if job.state in (JobState.RUNNING, JobState.QUEUED) and not is_ending:
        return [Order(verb="pause", label="Pause", key="p")]
    return []


def _ending(job: Job, name: str, has_points: bool, num_checkpoints: int) -> list[Order]:
    if job.state in TERMINAL or job.cancel_requested:
        return []
    kept = f"{num_checkpoints} checkpoint{'' if num_checkpoints == 1 else 's'}"
    found = []
    if not job.stop_requested and (job.state in _MOVING or has_points):
        left = f" The other {job.total_steps - job.step:,} steps are not trained." if (
            job.total_steps and job.total_steps > job.step
        ) else ""  # fmt: skip
        found.append(
            Order(
                verb="stop",
                label="Stop and keep",
                question=f"Stop {name} and keep what it learned?",
                stays="The training ends after its next step. Its weights become the result. "
                f"Curves, events and {kept} stay.{left}",
            )
        )
    cancel = Order(
        verb="cancel",
        label="Cancel",
        question=f"Cancel {name}?",
        stays=f"Curves, events and {kept} stay. The job gets no result, and what it learned since "
        "its last checkpoint is lost.",
    )
    return [*found, cancel]


def _again(job: Job, name: str, has_points: bool) -> list[Order]:
    found = []
    if job.state in (JobState.FAILED, JobState.CANCELLED):
        found.append(Order(verb="retry", label="Retry"))
    if has_points:
        question = f"Fork {name}"
        stays = "The fork is a new job that starts from a resume point of this job. This job stays."
        found.append(Order(verb="fork", label="Fork", question=question, stays=stays, key="f"))
    return found

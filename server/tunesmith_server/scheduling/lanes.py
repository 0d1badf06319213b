"""The interactive lane: short jobs that are claimed first and that can pre-empt other jobs."""

from __future__ import annotations

from tunesmith_server.models import JobRow

INTERACTIVE_SECONDS = 600.0
"""Device-time after which an interactive job is treated like any other job."""
LEFT = (
    f"the job has used its device for {INTERACTIVE_SECONDS / 60:.0f} minutes and leaves the "
    "interactive lane: it continues, but other jobs may pre-empt it"
)
"""Message of the event of a job that leaves the lane."""


def leave_if_too_long(job: JobRow, now: float) -> bool:
    """Remove a running job from the lane if it has used INTERACTIVE_SECONDS; return True if the job
    was removed."""
    if not job.interactive or job.claimed_at is None:
        return False
    if job.device_seconds + now - job.claimed_at <= INTERACTIVE_SECONDS:
        return False
    job.interactive = False
    return True

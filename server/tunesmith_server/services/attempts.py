"""Attempts that ended badly: which are worth another, when it may begin, and when that is enough.

A release (drain, pause, SIGTERM) never comes here and is not charged. A failure after progress is
charged like any other: a job that costs a worker at every resume point must end too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from pydantic import JsonValue
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCategory, ErrorCode, JobFailure, JobState
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import JobRow

from . import job_control, jobs

ANOTHER_MAY_DO_BETTER: Mapping[ErrorCategory, bool] = MappingProxyType(
    {
        ErrorCategory.USER: False,
        ErrorCategory.DATA: False,
        ErrorCategory.GRADER: False,
        ErrorCategory.OUT_OF_MEMORY: False,
        ErrorCategory.INFRASTRUCTURE: True,
    }
)
"""The same request meets the same end, unless it was the host's doing."""
ONCE_MORE = frozenset({ErrorCode.KILLED_FOR_MEMORY})
"""Whatever their category: another process may have taken the memory; the second time it did not.
"""
BACK_OFF_FACTOR = 3.0
MAX_BACK_OFF_SECONDS = 600.0
_SHOWN = 10
_LINE = 200


def end_badly(
    session: Session,
    settings: Settings,
    job: JobRow,
    failure: JobFailure,
    values: Mapping[str, Any] = MappingProxyType({}),  # Any: columns set along
) -> JobRow | None:
    """Charge a held job's attempt: queue it again for later, or fail it with its history; what its
    user has asked for meanwhile goes first.

    Conditional on the job's fence; None: nothing was changed.
    """
    ended = {"attempt": job.attempt, "at": time.time(), **failure.model_dump(mode="json")}
    failures = [*job.failures, ended]
    columns = {**values, "failures": failures, "losses": job.losses + 1}
    reason = f"attempt {job.attempt} ended badly"
    may_go_on = _worth_another(failure, failures)
    if job.cancel_requested:
        return jobs.move(
            session, job.id, JobState.CANCELLED, "cancelled", fence=job.fence, values=columns
        )
    columns |= {"phase": None, "lease_until": None}
    if may_go_on and job.state == JobState.PAUSING:
        message = f"{reason}: paused ({failure.message})"
        return jobs.move(
            session, job.id, JobState.PAUSED, message, fence=job.fence, level="warn", values=columns
        )
    if may_go_on and job.stop_requested and not job_control.has_resume_point(session, job):
        message = f"{reason} before anything was stored that the stop could have kept: cancelled"
        return jobs.move(
            session, job.id, JobState.CANCELLED, message, fence=job.fence, values=columns
        )
    if not may_go_on or job.losses + 1 >= settings.max_losses:
        last = failure.model_copy(update={"message": _with_history(failure, failures)})
        return jobs.fail(session, job.id, last, fence=job.fence, values=columns)
    wait = back_off(settings, job.losses + 1)
    data: dict[str, JsonValue] = {
        "attempt": job.attempt,
        "code": failure.code,
        "category": failure.category,
        "hint": failure.hint,
        "retry_in_seconds": wait,
    }
    return jobs.move(
        session,
        job.id,
        JobState.QUEUED,
        f"{reason}, queued again, to start in {wait:.0f} s at the earliest: {failure.message}",
        fence=job.fence,
        level="warn",
        data=data,
        values={
            **columns,
            "queued_at": time.time(),
            "woken_at": 0.0,  # the janitor wakes a worker once the wait is over
            "not_before": epoch_now() + wait,
        },
    )


def back_off(settings: Settings, losses: int) -> float:
    """Seconds before the next attempt, after that many bad ones."""
    wait = settings.retry_seconds * BACK_OFF_FACTOR ** min(losses - 1, 20)
    return min(MAX_BACK_OFF_SECONDS, wait)


def _worth_another(failure: JobFailure, failures: list[dict[str, Any]]) -> bool:
    if failure.code in ONCE_MORE:
        return [one["code"] for one in failures].count(failure.code) == 1
    return ANOTHER_MAY_DO_BETTER[failure.category]


def _with_history(failure: JobFailure, failures: list[dict[str, Any]]) -> str:
    if len(failures) == 1:
        return failure.message
    lines = [f"{failure.message[:2000]}", f"{len(failures)} attempts ended badly:"]
    for one in failures[-_SHOWN:]:
        when = datetime.fromtimestamp(one["at"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        what = str(one["message"]).partition("\n")[0][:_LINE]
        lines.append(f"attempt {one['attempt']}, {when}: {one['code']}: {what}")
    return "\n".join(lines)[:4000]

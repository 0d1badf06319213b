"""Retries of failed attempts: which failures are retried, when, and how often.

An attempt that ends because the worker releases the job (drain, pause, SIGTERM) is not a failed
attempt. A failed attempt counts even if it made progress, so that a job which loses its worker
again and again cannot run forever.
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

from ..training import job_control, jobs

RETRIED_CATEGORIES: Mapping[ErrorCategory, bool] = MappingProxyType(
    {
        ErrorCategory.USER: False,
        ErrorCategory.DATA: False,
        ErrorCategory.GRADER: False,
        ErrorCategory.OUT_OF_MEMORY: False,
        ErrorCategory.INFRASTRUCTURE: True,
    }
)
"""True for the categories of failures that are retried. Only failures of the infrastructure are
retried, because other failures would occur again."""
RETRIED_ONCE = frozenset({ErrorCode.KILLED_FOR_MEMORY})
"""Error codes that are retried once, because another process may have used the memory."""
BACK_OFF_FACTOR = 3.0
MAX_BACK_OFF_SECONDS = 600.0
_MAX_LISTED = 10
_MAX_LAST = 1200
"""Maximum length of the newest failure's message within JobFailure's message. The rest of
JobFailure's message has room for `_MAX_LISTED` lines, one for each failure."""
_MAX_LINE = 200


def fail_attempt(
    session: Session,
    settings: Settings,
    job: JobRow,
    failure: JobFailure,
    values: Mapping[str, Any] = MappingProxyType({}),  # Any: other columns to set
) -> JobRow | None:
    """Record a failed attempt of a held job: requeue the job with a delay, or fail the job and
    store the failures of all attempts. If the user has cancelled the job, cancel the job instead of
    retrying or failing it. If the user has paused or stopped the job and the failure may be
    retried, follow the user's command instead of retrying. Returns None, and changes nothing, if
    another worker has claimed the job since it was read."""
    record = {"attempt": job.attempt, "at": time.time(), **failure.model_dump(mode="json")}
    failures = [*_readable(job.failures), record]
    columns = {**values, "failures": failures, "losses": job.losses + 1}
    reason = f"attempt {job.attempt} failed"
    may_retry = _may_retry(failure, failures)
    end = job_control.requested_end(session, job) if may_retry or job.cancel_requested else None
    columns |= {"phase": None, "lease_until": None}
    is_lost = failure.category is ErrorCategory.INFRASTRUCTURE
    if end is not None:
        state, outcome = end
        return jobs.move(
            session,
            job.id,
            state,
            outcome if job.cancel_requested else f"{reason}: {outcome} ({failure.message})",
            fence=job.fence,
            level="info" if state == JobState.CANCELLED else "warn",
            values=columns,
            work_is_lost=is_lost,
        )
    if not may_retry or job.losses + 1 >= settings.max_losses:
        last = failure.model_copy(update={"message": _with_history(failure, failures)})
        return jobs.fail(
            session, job.id, last, fence=job.fence, values=columns, work_is_lost=is_lost
        )
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
        f"{reason}: queued again, earliest start in {wait:.0f} s ({failure.message})",
        fence=job.fence,
        level="warn",
        data=data,
        values={
            **columns,
            "queued_at": time.time(),
            "woken_at": 0.0,  # the janitor wakes a worker after the wait
            "not_before": epoch_now() + wait,
        },
        work_is_lost=is_lost,
    )


def back_off(settings: Settings, losses: int) -> float:
    """Return the seconds to wait after `losses` failed attempts."""
    wait = settings.retry_seconds * BACK_OFF_FACTOR ** min(losses - 1, 20)
    return min(MAX_BACK_OFF_SECONDS, wait)


def _may_retry(failure: JobFailure, failures: list[dict[str, Any]]) -> bool:
    if failure.code in RETRIED_ONCE:
        return [record["code"] for record in failures].count(failure.code) == 1
    return RETRIED_CATEGORIES[failure.category]


def _readable(failures: object) -> list[dict[str, Any]]:  # Any: JSON
    """Return the earlier failures. Damaged entries are left out, so that the new failure can be
    stored."""
    fields = {"attempt", "at", "code", "message"}
    listed = failures if isinstance(failures, list) else []
    return [record for record in listed if isinstance(record, dict) and fields <= record.keys()]


def _with_history(failure: JobFailure, failures: list[dict[str, Any]]) -> str:
    if len(failures) == 1:
        return failure.message
    lines = [_clipped(failure.message, _MAX_LAST), f"{len(failures)} attempts failed:"]
    for record in failures[-_MAX_LISTED:]:
        when = datetime.fromtimestamp(record["at"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        first_line = _clipped(str(record["message"]).partition("\n")[0], _MAX_LINE)
        lines.append(f"attempt {record['attempt']}, {when}: {record['code']}: {first_line}")
    return _clipped("\n".join(lines), 4000)


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."

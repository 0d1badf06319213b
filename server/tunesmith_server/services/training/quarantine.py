"""Quarantine of rows: if a job's row makes an operation raise an error, only this job fails, and
the operation continues with the next job. Errors from an outage are raised unchanged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import update
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, ErrorCategory, ErrorCode, JobFailure, JobState
from tunesmith_schema.documents import Unreadable
from tunesmith_server.core.errors import ServiceError
from tunesmith_server.models import JobRow

from ..results.faults import is_outage
from . import jobs, stored_job

log = logging.getLogger(__name__)

T = TypeVar("T")


class Unusable(Exception):
    """Raised for a job that no worker can run; `failure` is the job's error."""

    def __init__(self, failure: JobFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def guarded(session: Session, job_id: str, purpose: str, act: Callable[[], T]) -> T | None:
    """Run `act` in a savepoint and return its result. If `act` raises because of the job's row,
    fail the job and return None. `purpose`: words after "the job cannot be" in the message."""
    try:
        with session.begin_nested():
            return act()
    except Exception as error:
        fail(session, job_id, purpose, error)
        return None


def fail(session: Session, job_id: str, purpose: str, error: Exception) -> None:
    """Fail a job whose row has raised `error`; raise the error again if it is an outage."""
    if is_outage(error):
        raise error
    failure = _failure(purpose, error)
    log.error(
        "%s: %s",
        job_id,
        failure.message,
        exc_info=None if isinstance(error, Unusable) else error,
    )
    _fail(session, job_id, failure)


def _failure(purpose: str, error: Exception) -> JobFailure:
    if isinstance(error, Unusable):
        return error.failure
    reason = str(error) if isinstance(error, Unreadable | ServiceError) else _named(error)
    return JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.UNREADABLE,
        message=f"the job cannot be {purpose}, because its row cannot be read: {reason}"[:4000],
        hint=stored_job.HINT,
    )


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:500]}"


def _fail(session: Session, job_id: str, failure: JobFailure) -> None:
    fence = {"fence": JobRow.fence + 1}  # a worker that holds the job must stop
    try:
        with session.begin_nested():
            jobs.fail(session, job_id, failure, values=fence)
            session.flush()
        return
    except Exception as error:
        if is_outage(error):
            raise
        log.exception("no event can be added to %s", job_id)
    columns = {
        "state": JobState.FAILED,
        "error": failure.model_dump(mode="json"),
        "finished_at": time.time(),
        "lease_until": None,
        "phase": None,
    }
    session.execute(
        update(JobRow)
        .where(JobRow.id == job_id, JobRow.state.not_in(TERMINAL))
        .values({**columns, **fence}),
        execution_options={"synchronize_session": False},
    )

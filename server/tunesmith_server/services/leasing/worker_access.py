"""Credentials of workers, and what a worker may read and write.

Each worker generates its own secret and enrolls with the shared token. All later requests have the
worker's id and secret. A training worker has access only to the jobs and evaluations whose lease it
holds, and to their files. A light worker, which validates files, has access only to files that it
has claimed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sqlalchemy import delete, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, EvaluationStatus, WorkerEnrollment
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import Conflict, Unauthorized
from tunesmith_server.core.security import equal_secrets, key_hash
from tunesmith_server.models import EvaluationRow, FileRow, JobRow, WorkerCredentialRow, WorkerRow

from ..training import jobs
from ..training.jobs import HELD
from . import leases

KEEP_SECONDS = 14 * 24 * 3600.0
"""A worker's credential is removed if, for this number of seconds, the worker has neither enrolled
nor reported, and if it holds no job. A live worker enrolls again automatically."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """An authenticated worker."""

    worker_id: str
    queue: Literal["train", "light"]


def enroll(session: Session, body: WorkerEnrollment) -> None:
    """Store a worker's credential. Enrolling again with the same secret changes nothing."""
    now = session.execute(select(epoch_now())).scalar_one()
    session.execute(
        delete(WorkerCredentialRow).where(
            WorkerCredentialRow.enrolled_at < now - KEEP_SECONDS,
            WorkerCredentialRow.worker_id.not_in(
                select(WorkerRow.worker_id).where(WorkerRow.last_seen > now - KEEP_SECONDS)
            ),
            WorkerCredentialRow.worker_id.not_in(
                select(JobRow.lease_owner).where(
                    JobRow.state.in_(HELD), JobRow.lease_owner.is_not(None)
                )
            ),
        ),
        execution_options={"synchronize_session": False},
    )
    row = session.get(WorkerCredentialRow, body.worker_id, with_for_update=True)
    if row is None:
        fields = body.model_dump()
        session.add(WorkerCredentialRow(**fields, enrolled_at=now))
        session.flush()
    elif row.secret_sha256 != body.secret_sha256 or row.queue != body.queue:
        raise Conflict(
            ErrorCode.INVALID_REQUEST,
            f"another worker has the id {body.worker_id!r}",
            hint="restart this worker: it then uses a new id",
        )


def authenticate(session: Session, authorization: str | None) -> Worker:
    """Return the worker that the `Authorization` header (`Bearer ID:SECRET`) identifies."""
    credential = (authorization or "").removeprefix("Bearer ").strip()
    worker_id, _, secret = credential.rpartition(":")
    if not worker_id:
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            "the request has no worker credential",
            hint="update the workers to the server's version, because the worker token is only "
            "for enrolling a worker",
        )
    row = session.get(WorkerCredentialRow, worker_id)
    if row is None or not equal_secrets(key_hash(secret), row.secret_sha256):
        raise Unauthorized(
            ErrorCode.WORKER_NOT_ENROLLED,
            f"the worker {worker_id[:128]!r} is not enrolled with this secret",
            hint="POST /internal/workers/enroll with the worker token; workers of this version do "
            "so by themselves",
        )
    return Worker(worker_id=row.worker_id, queue="light" if row.queue == "light" else "train")


def check_self(worker: Worker, worker_id: str, queue: str | None = None) -> None:
    """Refuse a request if it names another worker or queue than the request's credential does."""
    if worker_id != worker.worker_id or queue not in (None, worker.queue):
        raise Unauthorized(
            ErrorCode.INVALID_API_KEY,
            f"the credential is that of {worker.worker_id} ({worker.queue}), but the request names "
            f"{worker_id}" + (f" ({queue})" if queue else ""),
            hint="send the id and the queue of this worker",
        )


def held_job(session: Session, worker: Worker, job_id: str, fence: int) -> JobRow:
    """Return the job if the worker holds it with this fencing token, else raise Conflict."""
    job = leases.check_fence(session, job_id, fence)
    if job.lease_owner != worker.worker_id:
        raise _not_held(job, worker)
    return job


def check_reporter(session: Session, worker: Worker, job_id: str) -> None:
    """Refuse the report if this worker was not the last one to claim the job."""
    job = jobs.retrieve(session, job_id)
    if job.lease_owner != worker.worker_id:
        raise _not_held(job, worker)


def check_file(session: Session, worker: Worker, file: FileRow) -> None:
    """Refuse a file that the worker does not need for its current jobs, evaluations or files."""
    if worker.queue == "light":
        allowed = file.reading_until is not None and file.reader == worker.worker_id
    else:
        uses = or_(JobRow.training_file == file.id, JobRow.validation_file == file.id)
        held = select(JobRow.id).where(
            uses, JobRow.lease_owner == worker.worker_id, JobRow.state.in_(HELD)
        )
        evaluated = select(EvaluationRow.id).where(
            EvaluationRow.file == file.id,
            EvaluationRow.lease_owner == worker.worker_id,
            EvaluationRow.status == EvaluationStatus.RUNNING,
        )
        allowed = any(session.scalar(found.limit(1)) for found in (held, evaluated))
    if not allowed:
        raise Conflict(
            ErrorCode.FENCED_OUT,
            f"{worker.worker_id} ({worker.queue}) has no work that needs the file {file.id}",
            hint="a training worker may read the files of the jobs and evaluations that it holds; "
            "a worker of the queue `light` may read the files that it has claimed",
        )


def _not_held(job: JobRow, worker: Worker) -> Conflict:
    return Conflict(
        ErrorCode.FENCED_OUT,
        f"{worker.worker_id} does not hold job {job.id}",
        hint="stop the trainer: another worker has the job, or the job has ended",
    )

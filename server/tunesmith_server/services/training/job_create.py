"""Creation of jobs; forks and retries also use `insert`."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Job, JobCreate, MethodName, Scheduling
from tunesmith_schema.documents import DOCUMENT_VERSION
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, Conflict, Unavailable
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import FileRow, IdempotencyRow, JobRow
from tunesmith_server.models.owned import DEFAULT_PROJECT
from tunesmith_server.models.scope import all_projects, project_of
from tunesmith_server.scheduling import limits
from tunesmith_server.scheduling.eligibility import packed

from .. import quotas
from ..catalogue import base_models, chat_limits
from ..data import files
from . import events, jobs, waiting


@dataclass(frozen=True, kw_only=True)
class Requester:
    """Caller of a create request, and the key that identifies a repeated request."""

    owner: str
    idempotency_key: str | None = None
    may_raise_priority: bool = False
    """True if the caller may create jobs with a priority above 0."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Source of a fork or retry."""

    description: str
    """Text at the end of the event message "created: ..."."""
    job_id: str | None = None
    """Job whose resume point the new job starts from. None means that the new job starts at step
    0."""
    step: int | None = None
    retry_of: str | None = None


def create(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    body: JobCreate,
    requester: Requester,
) -> tuple[Job, bool]:
    """Create a job. If this request already created a job, return that job and True."""
    digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    if earlier := find_earlier(session, requester, digest):
        return jobs.to_wire(earlier), True
    return jobs.to_wire(insert(session, settings, wake_ups, body, requester, digest)), False


def insert(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    body: JobCreate,
    requester: Requester,
    digest: str,
    origin: Origin | None = None,
) -> JobRow:
    """Check and insert a job, and queue the job if its files are validated. `digest` is the
    request's sha256."""
    quotas.check(session, 0)
    base = base_models.choose(session, settings, body.model)
    method: MethodName = body.method.type if body.method else "supervised"
    file_rows = [usable_file(session, body.training_file, "training_file", method)]
    if body.validation_file:
        file_rows.append(usable_file(session, body.validation_file, "validation_file", method))
    asked, project_id = body.scheduling or Scheduling(), project_of(session)
    limits.check_create(session, project_id or DEFAULT_PROJECT, requester.owner)
    now = time.time()
    job = JobRow(
        id=new_id("ftjob"),
        created_at=now,
        owner=requester.owner,
        model=base.name,
        base_adapter_id=base.adapter_id,
        training_file=body.training_file,
        validation_file=body.validation_file,
        suffix=body.suffix,
        seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
        labels=body.metadata,
        document_version=DOCUMENT_VERSION,
        recipe=body.recipe.model_dump(mode="json"),
        hyperparameters=body.chosen_hyperparameters().model_dump(mode="json"),
        method=_effective_method(body),
        method_name=method,
        priority=asked.priority,
        interactive=asked.interactive,
        worker_labels=packed(asked.worker_labels),
        needs_bytes=asked.device_bytes,
        attempt=0,
        last_seq=0,
        forked_from=origin and origin.job_id,
        forked_step=origin and origin.step,
        retry_of=origin and origin.retry_of,
    )
    suffix = f", {origin.description}" if origin else ""
    first = [events.new(job, f"created: {base.name} on {file_rows[0].filename}{suffix}")]
    if base.missing_on_workers:
        first.append(waiting.new_warning(job))
    for warning in chat_limits.find_warnings(settings, body.recipe):
        message = f"{warning.message} ({warning.param}): {warning.hint}"
        data: dict[str, JsonValue] = {"reason": chat_limits.REASON, "param": warning.param}
        first.append(events.new(job, message, level="warn", data=data))
    jobs.insert(session, wake_ups, job, file_rows, first)
    if requester.idempotency_key:
        session.add(
            IdempotencyRow(
                owner=requester.owner,
                key=requester.idempotency_key,
                body_sha256=digest,
                job_id=job.id,
                created_at=now,
            )
        )
    try:
        session.flush()
    except IntegrityError as error:  # another transaction used the same key (PostgreSQL only)
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            f"another request with Idempotency-Key {requester.idempotency_key!r} is in progress",
            hint="repeat the request: it returns the job that the other request creates",
        ) from error
    return job


def _effective_method(body: JobCreate) -> dict[str, Any] | None:  # Any: JSON
    """Return `method` with all hyperparameters filled in, for display and for retries."""
    if body.method is None or body.method.reinforcement is None:
        return body.method.model_dump(mode="json") if body.method else None
    member = {
        "grader": body.method.reinforcement.grader.model_dump(mode="json"),
        "hyperparameters": body.chosen_hyperparameters().model_dump(mode="json"),
    }
    return {"type": "reinforcement", "reinforcement": member}


def find_earlier(session: Session, requester: Requester, digest: str) -> JobRow | None:
    """Return the job that a request with the same Idempotency-Key has already created."""
    key = requester.idempotency_key
    own = (IdempotencyRow.owner == requester.owner, IdempotencyRow.key == key)
    # An admin key may have used the same Idempotency-Key in another project.
    row = session.scalar(all_projects(select(IdempotencyRow).where(*own))) if key else None
    if row is None:
        return None
    elsewhere = project_of(session) not in (None, row.project_id)
    if elsewhere or row.body_sha256 != digest:
        where = "in another project" if elsewhere else f"(job {row.job_id})"
        raise Conflict(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            f"Idempotency-Key {key!r} was used for a different request {where}",
            hint="use a new key for a new job",
        )
    return session.get(JobRow, row.job_id)


def usable_file(session: Session, file_id: str, param: str, method: MethodName) -> FileRow:
    """Return the row of a job's file, locked for reading. Raises BadRequest if the method cannot
    use the file."""
    row = files.retrieve(session, file_id, param=param, lock={"read": True})
    if row.purpose != "fine-tune":
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"{param}: file {file_id!r} ({row.filename}) has the purpose {row.purpose!r}",
            param=param,
            hint="upload the file with purpose 'fine-tune'",
        )
    if reason := files.refusal(row, method):
        field = "problems" if row.status == "error" else f"refused.{method}.problems"
        raise BadRequest(
            jobs.invalid_file_code(param),
            f"{param}: {row.filename} cannot be {files.USE[method]}: {reason}",
            param=param,
            hint=f"GET /v1/files/{file_id} lists the bad rows under validation.{field}",
        )
    return row

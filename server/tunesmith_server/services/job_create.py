"""How a job comes to be: a create, and the insert that forks and retries share with it."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Job, JobCreate, JobState, MethodName
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, Conflict, Unavailable
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import FileRow, IdempotencyRow, JobRow

from . import base_models, events, files, jobs

REPLAY_SECONDS = 300.0
"""A client's automatic retry of a create (no key, same body) is recognised for this long."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks for a job, and how the same request is known again."""

    owner: str
    idempotency_key: str | None = None
    is_retry: bool = False
    """Whether the client says that it sends this once more."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a job that does not begin at step 0 comes from."""

    words: str
    """Ends the event "created: ..."."""
    job_id: str | None = None
    """Whose resume point it starts from; None: it begins anew."""
    step: int | None = None
    retry_of: str | None = None


def create(
    session: Session, settings: Settings, wake_ups: WakeUps, body: JobCreate, by: Caller
) -> tuple[Job, bool]:
    """Make a job, or find the one this request already made; also whether it is that one."""
    digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
    if earlier := made_before(session, by, digest):
        return jobs.to_wire(earlier), True
    return jobs.to_wire(insert(session, settings, wake_ups, body, by, digest)), False


def insert(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    body: JobCreate,
    by: Caller,
    digest: str,
    origin: Origin | None = None,
) -> JobRow:
    """A new job, checked and queued. `digest`: sha256 of the request."""
    base = base_models.choose(session, settings, body.model)
    kind: MethodName = body.method.type if body.method else "supervised"
    row_files = [_usable_file(session, body.training_file, "training_file", kind)]
    if body.validation_file:
        row_files.append(_usable_file(session, body.validation_file, "validation_file", kind))
    now = time.time()
    job = JobRow(
        id=new_id("ftjob"),
        state=JobState.VALIDATING_FILES,
        created_at=now,
        owner=by.owner,
        body_sha256=digest,
        model=base.name,
        base_adapter_id=base.adapter_id,
        training_file=body.training_file,
        validation_file=body.validation_file,
        suffix=body.suffix,
        seed=secrets.randbelow(2**31) if body.seed is None else body.seed,
        labels=body.metadata,
        recipe=body.recipe.model_dump(mode="json"),
        hyperparameters=body.chosen_hyperparameters().model_dump(mode="json"),
        method=_whole_method(body),
        last_seq=0,
        forked_from=origin and origin.job_id,
        forked_step=origin and origin.step,
        retry_of=origin and origin.retry_of,
    )
    session.add(job)
    session.flush()
    if by.idempotency_key:
        session.add(
            IdempotencyRow(
                owner=by.owner,
                key=by.idempotency_key,
                body_sha256=digest,
                job_id=job.id,
                created_at=now,
            )
        )
    about = f", {origin.words}" if origin else ""
    events.add(session, job, f"created: {base.name} on {row_files[0].filename}{about}")
    if warning := base_models.why_it_waits(base):
        events.add(session, job, warning, level="warn")
    try:
        session.flush()
    except IntegrityError as error:  # the same key in another transaction (PostgreSQL only)
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            f"a request with Idempotency-Key {by.idempotency_key!r} is being served right now",
            hint="send it again: the answer is the job that the other one made",
        ) from error
    jobs.queue_if_validated(session, wake_ups, job, row_files)
    return job


def _whole_method(body: JobCreate) -> dict[str, Any] | None:  # Any: JSON
    """As it is shown, and as it makes the job again: with the hyperparameters in force."""
    if body.method is None or body.method.reinforcement is None:
        return body.method.model_dump(mode="json") if body.method else None
    member = {
        "grader": body.method.reinforcement.grader.model_dump(mode="json"),
        "hyperparameters": body.chosen_hyperparameters().model_dump(mode="json"),
    }
    return {"type": "reinforcement", "reinforcement": member}


def made_before(session: Session, by: Caller, digest: str) -> JobRow | None:
    """The job that this very request has already made."""
    if key := by.idempotency_key:
        known = session.get(IdempotencyRow, (by.owner, key))
        if known is None:
            return None
        if known.body_sha256 != digest:
            raise Conflict(
                ErrorCode.IDEMPOTENCY_CONFLICT,
                f"Idempotency-Key {key!r} was used for a different request (job {known.job_id})",
                hint="use a new key for a new job",
            )
        return session.get(JobRow, known.job_id)
    if not by.is_retry:
        return None
    return session.scalar(
        select(JobRow)
        .where(
            JobRow.owner == by.owner,
            JobRow.body_sha256 == digest,
            JobRow.created_at > time.time() - REPLAY_SECONDS,
        )
        .order_by(JobRow.created_at.desc())
        .limit(1)
    )


def _usable_file(session: Session, file_id: str, param: str, kind: MethodName) -> FileRow:
    row = files.retrieve(session, file_id, param=param, lock={"read": True})
    if row.purpose != "fine-tune":
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"{param}: file {file_id!r} was uploaded for {row.purpose!r}",
            param=param,
            hint="upload it with purpose 'fine-tune'",
        )
    if why := files.why_not(row, kind):
        place = "problems" if row.status == "error" else f"refused.{kind}.problems"
        raise BadRequest(
            jobs.invalid_file_code(param),
            f"{param}: {row.filename} cannot be {files.USE[kind]}: {why}",
            param=param,
            hint=f"GET /v1/files/{file_id} lists the bad rows under validation.{place}",
        )
    return row

"""Claims: a worker leases the first job of the queue that it can run.

One query chooses the job, locks the job's project and reads all values that the lease needs. A
claim reads everything before it writes. Therefore, a claim needs no savepoint: when a job's row
turns out to be unreadable, nothing has been written yet.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Any

from sqlalchemy import Row, Select, exists, select
from sqlalchemy.orm import Bundle, Session, aliased, load_only

from tunesmith_schema import Claim, ClaimedFile, ErrorCategory, ErrorCode, JobFailure, StoredFile
from tunesmith_schema.documents import Unreadable
from tunesmith_server.core.database import constant
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import (
    AdapterRow,
    ApiKeyRow,
    EventRow,
    FileRow,
    JobRow,
    ProjectRow,
    WorkerRow,
)
from tunesmith_server.scheduling import limits, order, reservations, usage
from tunesmith_server.scheduling.eligibility import Abilities, abilities

from ..training import events, jobs, quarantine, stored_job, waiting
from . import resume_points

MAX_CANDIDATES = 50
"""Maximum number of jobs that one claim tries.

If the worker can run none of the tried jobs, it gets no job and asks again soon.
"""

Columns = Row[Any]  # Any: the columns of `next_claim`
_TRAINING, _VALIDATION = aliased(FileRow), aliased(FileRow)
_READ = (
    *(JobRow.id, JobRow.project_id, JobRow.owner, JobRow.fence, JobRow.attempt, JobRow.last_seq),
    *(JobRow.created_at, JobRow.queued_at, JobRow.model, JobRow.base_adapter_id, JobRow.seed),
    *(JobRow.training_file, JobRow.validation_file, JobRow.document_version, JobRow.recipe),
    *(JobRow.method, JobRow.hyperparameters, JobRow.step, JobRow.forked_from, JobRow.forked_step),
)


def claim(session: Session, settings: Settings, worker_id: str) -> Claim | None:
    """Lease the first job of the queue that the worker can run; return None if there is no such
    job. A job whose row cannot be read fails, and the next job is tried."""
    worker = session.get(WorkerRow, worker_id)
    offer, names = abilities(worker), reservations.names_of(worker_id, worker)
    tried: list[str] = []
    for number in range(MAX_CANDIDATES):
        # Two claims that waited for each other's projects would deadlock.
        query = next_claim(offer, tuple(tried), skip_locked=number > 0)
        options = {"populate_existing": True}
        found = session.execute(query, names, execution_options=options).one_or_none()
        if found is None:
            break
        job: JobRow = found.JobRow
        if not limits.may_run(session, found.project, job.owner, found.max_running_jobs):
            continue  # another claim has used up the limit; the next query leaves the job out
        tried.append(job.id)
        ignored: list[str] = []
        try:
            claimed = _read(session, settings, found, ignored)
        except Exception as error:
            quarantine.fail(session, job.id, "claimed", error)
            continue
        times = jobs.start(session, job, worker_id, settings.lease_seconds)
        if times is None:
            continue  # another worker has just claimed it
        usage.begin(session, found.project, *times)
        if ignored or found.has_warning:
            _note(session, job, ignored)
        return claimed
    return None


@lru_cache(maxsize=512)  # building the query takes longer than executing it
def next_claim(worker: Abilities, tried: tuple[str, ...], *, skip_locked: bool) -> Select[Any]:
    """Return the query of the job that the worker gets, with the job's project, its files and the
    limit of its key. The query also returns whether the job has an active warning (waiting.py), and
    whether it has an event after `last_seq`. The query locks the project."""
    choice = order.next_job(worker, tried).subquery("choice")
    project: Bundle[Any] = Bundle(  # Any: its columns
        "project",
        *(ProjectRow.id, ProjectRow.archived_at, ProjectRow.max_running_jobs, ProjectRow.usage_log),
    )
    files: list[Bundle[Any]] = [  # Any: as above
        Bundle(name, row.id, row.filename, row.bytes, row.sha256)
        for name, row in (("training", _TRAINING), ("validation", _VALIDATION))
    ]
    of_job = exists().where(EventRow.job_id == JobRow.id)
    columns: tuple[Any, ...] = (  # Any: SQLAlchemy's own
        *(JobRow, project, *files, ApiKeyRow.max_running_jobs),
        of_job.where(EventRow.level == constant("warn")).label("has_warning"),
        of_job.where(EventRow.seq > JobRow.last_seq).label("has_later_event"),
    )
    query: Select[Any] = (
        select(*columns)
        .options(load_only(*_READ))
        .select_from(choice)
        .join(JobRow, JobRow.id == choice.c.id)
        .join(ProjectRow, ProjectRow.id == choice.c.project_id)
        .outerjoin(ApiKeyRow, ApiKeyRow.id == JobRow.owner)
        .outerjoin(_TRAINING, _TRAINING.id == JobRow.training_file)
        .outerjoin(_VALIDATION, _VALIDATION.id == JobRow.validation_file)
        .with_for_update(of=ProjectRow, skip_locked=skip_locked)
    )
    return query


def _read(session: Session, settings: Settings, found: Columns, ignored: list[str]) -> Claim:
    """Return the claim that the worker gets if the job can be leased. Add the settings that this
    release does not know to `ignored`. Raises an error if the row cannot be read."""
    job: JobRow = found.JobRow
    if found.has_later_event:
        raise Unreadable(f"last_seq: event {job.last_seq + 1} exists already")
    method = stored_job.method(job, ignored)
    base = _base_of(session, job)
    validation = job.validation_file
    has_points = job.attempt > 0 or job.forked_from  # only an attempt stores resume points
    points, forked = resume_points.for_claim(session, job) if has_points else ([], False)
    return Claim(
        job_id=job.id,
        attempt=job.attempt + 1,
        fence=job.fence + 1,
        lease_seconds=settings.lease_seconds,
        queued_seconds=max(0.0, time.time() - (job.queued_at or job.created_at)),
        model=job.model,
        base_files=[StoredFile.model_validate(file) for file in base.files] if base else None,
        training_file=_data_file(found.training, job.training_file, "training_file"),
        validation_file=_data_file(found.validation, validation, "validation_file")
        if validation
        else None,
        recipe=stored_job.recipe(job, ignored),
        method=stored_job.method_of(job),
        grader=method.reinforcement.grader if method and method.reinforcement else None,
        hyperparameters=stored_job.hyperparameters(job, ignored),
        seed=job.seed,
        step=job.step,
        resume_points=points,
        forked=forked,
    )


def _base_of(session: Session, job: JobRow) -> AdapterRow | None:
    if not job.base_adapter_id:
        return None
    row = session.get(AdapterRow, job.base_adapter_id)
    if row is None:
        failure = JobFailure(
            category=ErrorCategory.USER,
            code=ErrorCode.BASE_MODEL_GONE,
            message=f"the weights of the base model {job.model!r} have been deleted",
            hint="create a job with another base model",
            param="model",
        )
        raise quarantine.Unusable(failure)
    return row


def _data_file(row: Columns, file_id: str, param: str) -> ClaimedFile:
    if row.id is None:
        failure = JobFailure(
            category=ErrorCategory.USER,
            code=jobs.invalid_file_code(param),
            message=f"{param}: the file {file_id} no longer exists",
            hint="upload the file again and create a new job",
            param=param,
        )
        raise quarantine.Unusable(failure)
    return ClaimedFile(file_id=row.id, filename=row.filename, bytes=row.bytes, sha256=row.sha256)


def _note(session: Session, job: JobRow, ignored: list[str]) -> None:
    """Withdraw the job's warning that no worker has its base model, and add an event that names the
    ignored settings."""
    session.refresh(job)
    waiting.withdraw_at_claim(session, job)
    if ignored:
        names = ", ".join(dict.fromkeys(ignored))
        message = f"settings of another release are ignored: {names}"
        events.add(session, job, message[:4000], level="warn")

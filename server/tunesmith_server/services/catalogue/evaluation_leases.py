"""Leases of evaluations: a training worker claims an evaluation between two jobs, renews the lease,
and reports the end.

A write with the number of an older claim is refused, so only the newest claim of an evaluation can
store a result. Only the janitor ends the lease of a silent worker.

Evaluations wait in the queue like jobs of their project. Evaluations also count towards the limits
of running jobs and of device-hours. Each renewal of a lease charges the project for device-time."""

from __future__ import annotations

import logging
import time

from sqlalchemy import Select, func, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    ErrorCategory,
    ErrorCode,
    EvaluationStatus,
    JobFailure,
    RequestedEvaluation,
    StoredFile,
)
from tunesmith_schema.documents import DOCUMENT_VERSION, read_document
from tunesmith_schema.evaluation import EvaluatedOn
from tunesmith_schema.evaluations import (
    ClaimedModel,
    EvaluationClaim,
    EvaluationLease,
    EvaluationOutcome,
    EvaluationRenewal,
)
from tunesmith_schema.queue import TRAIN_TASK
from tunesmith_schema.worker import ClaimedFile
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import Conflict, NotFound, ServiceError
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.inference.protocol import ServedModel
from tunesmith_server.models import (
    AdapterRow,
    ApiKeyRow,
    EvaluationRow,
    FileRow,
    JobRow,
    ModelPermissionRow,
    ProjectRow,
    ReservationRow,
    WorkerRow,
)
from tunesmith_server.scheduling import limits, order, reservations, usage
from tunesmith_server.scheduling.eligibility import abilities

from .. import workers
from ..data import files
from . import evaluations, served_models

log = logging.getLogger(__name__)

MAX_LOST = 3
"""Number of lost workers or killed processes after which an evaluation fails."""
MAX_CANDIDATES = 20
"""Maximum number of evaluations that one claim tries.

If the worker can run none of the tried evaluations, the claim returns none, and the worker asks
again soon.
"""


def claim(session: Session, settings: Settings, worker_id: str) -> EvaluationClaim | None:
    """Lease the first evaluation that the worker can run, if no job comes before it; return None if
    there is no such evaluation. An evaluation that no worker could run fails, for example if its
    model was deleted."""
    rows = session.scalars(_candidates()).all()
    worker = session.get(WorkerRow, worker_id)
    names = reservations.names_of(worker_id, worker)
    reserved = reservations.of_worker(session, names)
    holds_project = False
    for row in rows:
        if reservations.refuses(reserved, row.project_id):
            continue
        if _job_goes_first(session, worker, names, row):
            return None
        try:
            _check_permissions(session, row)
            claimed = _claim_of(session, settings, row)
        except (ServiceError, ValueError, TypeError) as error:
            log.warning("evaluation %s cannot run: %s", row.id, error)
            _fail(row, _failure_of(error))
            continue
        if not _can_load(worker, claimed):
            continue
        lock = usage.lock_further_project if holds_project else usage.lock_project
        project, holds_project = lock(session, row.project_id), True
        of_key = session.scalar(select(ApiKeyRow.max_running_jobs).where(ApiKeyRow.id == row.owner))
        if project is None or not limits.may_run(session, project, row.owner, of_key):
            continue  # another claim has the project, or has used up the limit
        now = session.execute(select(epoch_now())).scalar_one()
        row.status, row.fence, row.lease_owner = EvaluationStatus.RUNNING, claimed.fence, worker_id
        row.lease_until = now + settings.lease_seconds
        row.started_at = row.started_at or time.time()
        return claimed
    return None


def _candidates() -> Select[EvaluationRow]:
    """Return a query of waiting evaluations: first the oldest evaluation of each project, with the
    projects in the order of the queue. Therefore, a claim tries evaluations of all projects, even
    if one project has very many evaluations."""
    place = (EvaluationRow.created_at, EvaluationRow.id)
    turn = func.row_number().over(partition_by=EvaluationRow.project_id, order_by=place)
    numbered = select(EvaluationRow.id, turn.label("turn")).where(workers.evaluation_waits())
    waiting = numbered.subquery()
    return (
        select(EvaluationRow)
        .join(waiting, waiting.c.id == EvaluationRow.id)
        .join(ProjectRow, ProjectRow.id == EvaluationRow.project_id)
        .where(limits.project_has_room(), limits.key_has_room(EvaluationRow.owner))
        .order_by(waiting.c.turn, *order.of_projects(), *place)
        .limit(MAX_CANDIDATES)
        .with_for_update(of=EvaluationRow, skip_locked=True)
    )


def _job_goes_first(
    session: Session,
    worker: WorkerRow | None,
    names: dict[str, str],
    row: EvaluationRow,
) -> bool:
    """Return True if the worker would get a job that comes before the evaluation: an interactive
    job, a job of a project that comes first, a job of higher priority, or an older job."""
    next_job = session.execute(order.next_job(abilities(worker)), names).first()
    if next_job is None:
        return False
    columns = (JobRow.interactive, JobRow.priority, JobRow.created_at)
    job = session.execute(select(*columns).where(JobRow.id == next_job.id)).one()
    if job.interactive:
        return True
    both = (next_job.project_id, row.project_id)
    places = select(ProjectRow.id, *order.of_projects()).where(ProjectRow.id.in_(both))
    place = {project_id: (*rest,) for project_id, *rest in session.execute(places)}
    theirs, mine = place[next_job.project_id], place[row.project_id]
    return (theirs, -job.priority, job.created_at) < (mine, 0, row.created_at)


def _check_permissions(session: Session, row: EvaluationRow) -> None:
    """Raise NotFound if another project has withdrawn a model since the evaluation was created."""
    for param, name in (("model", row.model), ("against", row.against)):
        owner = session.scalar(select(AdapterRow.project_id).where(AdapterRow.model == name))
        shared = select(ModelPermissionRow.id).where(
            ModelPermissionRow.model == name, ModelPermissionRow.project_id == row.project_id
        )
        if owner not in (None, row.project_id) and session.scalar(shared) is None:
            raise NotFound(
                ErrorCode.MODEL_NOT_FOUND, f"no model {name!r} on this server", param=param,
                hint="ask the project that trained the model to share it",
            )  # fmt: skip


def _claim_of(session: Session, settings: Settings, row: EvaluationRow) -> EvaluationClaim:
    request = read_document(
        RequestedEvaluation,
        {
            "id": row.id,
            "kind": row.kind,
            "created_at": int(row.created_at),
            "model": row.model,
            "status": row.status,
            "grader": row.grader,
        },
        "evaluation",
        version=DOCUMENT_VERSION,
    )
    file = files.retrieve(session, row.file or "")
    if reason := evaluations.refusal(file, has_grader=request.grader is not None):
        raise _Refused(f"{file.filename} cannot be evaluated: {reason}")
    against = row.against
    return EvaluationClaim(
        evaluation_id=row.id,
        fence=row.fence + 1,
        lease_seconds=settings.lease_seconds,
        model=_model(served_models.resolve(session, settings, row.model)),
        against=_model(served_models.resolve(session, settings, against, param="against"))
        if against
        else None,
        file=ClaimedFile(
            file_id=file.id, filename=file.filename, bytes=file.bytes, sha256=file.sha256
        ),
        on=_origin(session, row.model, file),
        grader=request.grader,
        losses=files.refusal(file, "supervised") is None,
    )


class _Refused(ValueError):
    """Raised if the file of a queued evaluation is not usable."""


def _model(served: ServedModel) -> ClaimedModel:
    if served.kind == "adapter" and served.base is not None:
        base = _model(served.base)
        return base.model_copy(update={"name": served.id, "adapter_files": [*served.files]})
    files = [*served.files] if served.kind == "full" else None
    return ClaimedModel(name=served.id, base=served.id, base_files=files)


def _origin(session: Session, model: str, file: FileRow) -> EvaluatedOn:
    """Return `training_file` if the model was trained on the content of the evaluation's file.

    Return `file` if the model was trained on other content, or if the model belongs to another
    project.
    """
    trained_on = session.scalar(
        select(FileRow.sha256)
        .join(JobRow, JobRow.training_file == FileRow.id)
        .join(AdapterRow, AdapterRow.job_id == JobRow.id)
        .where(AdapterRow.model == model, AdapterRow.project_id == file.project_id)
    )
    return "training_file" if trained_on == file.sha256 else "file"


def _can_load(worker: WorkerRow | None, claimed: EvaluationClaim) -> bool:
    known = worker.models if worker else []
    models = [model for model in (claimed.model, claimed.against) if model is not None]
    return all(
        model.base_files is not None or "/" in model.base or model.base in known for model in models
    )


def renew(
    session: Session, settings: Settings, evaluation_id: str, lease: EvaluationLease
) -> EvaluationRenewal:
    """Extend the lease. Raises Conflict if the worker no longer holds the lease."""
    row = _held(session, evaluation_id, lease)
    now = _charge(session, settings, row)
    row.lease_until = now + settings.lease_seconds
    return EvaluationRenewal(lease_seconds=settings.lease_seconds)


def model_file(
    session: Session, settings: Settings, evaluation_id: str, lease: EvaluationLease, sha256: str
) -> StoredFile:
    """Return a file of the models that the claimed evaluation needs."""
    held = _held(session, evaluation_id, lease, lock=False)
    claimed = _claim_of(session, settings, held)
    for model in (claimed.model, claimed.against):
        if model is not None:
            for file in [*(model.base_files or []), *(model.adapter_files or [])]:
                if file.sha256 == sha256:
                    return file
    raise NotFound(
        ErrorCode.NOT_FOUND,
        f"the models of evaluation {evaluation_id!r} have no file {sha256}",
        hint="the claim lists the files",
    )


def finish(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    evaluation_id: str,
    outcome: EvaluationOutcome,
) -> None:
    """Store the outcome of an evaluation. Repeating the report is safe. A result that arrives after
    the evaluation was cancelled is dropped."""
    row = evaluations.retrieve(session, evaluation_id, lock=True)
    reported_by = (outcome.fence, outcome.worker_id)
    if row.status in evaluations.ENDED and (row.fence, row.lease_owner) == reported_by:
        return
    row = _held(session, evaluation_id, outcome)
    _charge(session, settings, row)
    if outcome.state == "released":
        _queue_again(session, wake_ups, row)
    elif outcome.state == "crashed" and outcome.error is not None:
        _lose(session, wake_ups, row, outcome.error)
    elif outcome.result is not None:
        row.status, row.finished_at, row.lease_until = (
            EvaluationStatus.SUCCEEDED,
            time.time(),
            None,
        )
        row.result = outcome.result.model_dump(mode="json")
        row.verdict = outcome.result.verdict.replace("\0", "\ufffd")[:1000]
    elif outcome.error is not None:
        _fail(row, outcome.error)


def _charge(session: Session, settings: Settings, row: EvaluationRow) -> float:
    """Charge the project for the device-time since the claim or the last renewal, and return the
    database's time. A lost worker's time after its last renewal is not charged."""
    now = usage.database_now(session)
    since = now if row.lease_until is None else row.lease_until - settings.lease_seconds
    usage.charge(session, row.project_id, row.owner, row.model, since, now)
    return now


def take_back_expired(session: Session, wake_ups: WakeUps) -> int:
    """End the leases of silent workers; return the number of evaluations that were taken back."""
    expired = session.scalars(
        select(EvaluationRow)
        .where(
            EvaluationRow.status == EvaluationStatus.RUNNING,
            EvaluationRow.lease_until < epoch_now(),
        )
        .with_for_update(skip_locked=True)
    ).all()
    for row in expired:
        failure = JobFailure(
            category=ErrorCategory.INFRASTRUCTURE,
            code=ErrorCode.WORKER_LOST,
            message=f"worker {row.lease_owner} stopped reporting {row.losses + 1} times",
            hint="check the worker's log; its host may have run out of memory",
        )
        _lose(session, wake_ups, row, failure)
    return len(expired)


def take_back_reserved(session: Session, wake_ups: WakeUps) -> int:
    """Queue evaluations again if their worker is drained or reserved for another project; return
    their number. The worker learns from the reply to its next renewal that it has lost the
    evaluation. The next worker starts the evaluation from the first row."""
    reserved_for = ReservationRow.project_id
    refused = session.scalars(
        select(EvaluationRow)
        .join(WorkerRow, WorkerRow.worker_id == EvaluationRow.lease_owner)
        .join(ReservationRow, ReservationRow.worker.in_([WorkerRow.worker_id, WorkerRow.host]))
        .where(
            EvaluationRow.status == EvaluationStatus.RUNNING,
            or_(reserved_for.is_(None), reserved_for != EvaluationRow.project_id),
            reservations.active(),
        )
        .with_for_update(of=EvaluationRow, skip_locked=True)
    )
    rows = refused.unique().all()  # a worker may have several reservations
    for row in rows:
        _queue_again(session, wake_ups, row)
    return len(rows)


def _held(
    session: Session, evaluation_id: str, lease: EvaluationLease, *, lock: bool = True
) -> EvaluationRow:
    row = evaluations.retrieve(session, evaluation_id, lock=lock)
    holder = (row.status, row.fence, row.lease_owner)
    if holder != (EvaluationStatus.RUNNING, lease.fence, lease.worker_id):
        raise Conflict(
            ErrorCode.FENCED_OUT,
            f"worker {lease.worker_id} no longer holds evaluation {evaluation_id} (claim "
            f"{lease.fence}): it is {row.status} with claim {row.fence}",
            hint="stop the evaluation: it was cancelled, or another worker has it",
        )
    return row


def _lose(session: Session, wake_ups: WakeUps, row: EvaluationRow, failure: JobFailure) -> None:
    row.losses += 1
    if row.losses < MAX_LOST:
        _queue_again(session, wake_ups, row)
    else:
        _fail(row, failure)


def _queue_again(session: Session, wake_ups: WakeUps, row: EvaluationRow) -> None:
    row.status, row.lease_owner, row.lease_until = EvaluationStatus.QUEUED, None, None
    row.woken_at = time.time()
    wake_ups.send_after_commit(session, TRAIN_TASK, row.id)


def _fail(row: EvaluationRow, failure: JobFailure) -> None:
    row.status, row.finished_at, row.lease_until = EvaluationStatus.FAILED, time.time(), None
    row.error = failure.model_dump(mode="json")
    row.error["message"] = failure.message.replace("\0", "\ufffd")


def _failure_of(error: Exception) -> JobFailure:
    if isinstance(error, ServiceError):
        return JobFailure(
            category=ErrorCategory.USER,
            code=error.code,
            message=error.message[:4000],
            hint="the file or model was deleted or is no longer shared since the evaluation was "
            "created: create another evaluation",
            param=error.param,
        )
    refused = isinstance(error, _Refused)
    return JobFailure(
        category=ErrorCategory.DATA if refused else ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.DATASET_INVALID if refused else ErrorCode.UNREADABLE,
        message=str(error)[:4000],
        hint="fix the rows and upload the file again" if refused else None,
        param="file" if refused else None,
    )

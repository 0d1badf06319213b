"""Evaluations on demand: create, list, cancel and delete; results of lm-eval are stored as sent."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tunesmith_schema import (
    ErrorCode,
    EvaluationCreate,
    EvaluationDeleted,
    EvaluationStatus,
    RequestedEvaluation,
    TaskResults,
)
from tunesmith_schema.documents import DOCUMENT_VERSION, read_document
from tunesmith_schema.queue import LIGHT_QUEUE, TRAIN_TASK
from tunesmith_server.core.database import new_id
from tunesmith_server.core.errors import BadRequest, Conflict, NotFound, Unavailable
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.security import key_hash
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import AdapterRow, ApiKeyRow, EvaluationRow, FileRow, JobRow
from tunesmith_server.models.owned import DEFAULT_PROJECT
from tunesmith_server.models.scope import all_projects, project_of
from tunesmith_server.scheduling import limits

from .. import workers
from ..data import files
from ..pages import PageBuilder, read_newest
from ..paging import Order
from . import served_models

ENDED = (EvaluationStatus.SUCCEEDED, EvaluationStatus.FAILED, EvaluationStatus.CANCELLED)
_MAX_VERDICT = 1000


def create(
    session: Session,
    settings: Settings,
    wake_ups: WakeUps,
    body: EvaluationCreate,
    *,
    owner: str,
    idempotency_key: str | None,
) -> tuple[RequestedEvaluation, bool]:
    """Queue an evaluation, or store results of lm-eval. If this request already created an
    evaluation, return that evaluation and True."""
    digest = key_hash(body.model_dump_json())
    request_key = idempotency_key and key_hash(f"{owner}\n{idempotency_key}")
    if request_key and (earlier := _created_earlier(session, request_key, digest)):
        return to_wire(session, earlier), True
    now = time.time()
    row = EvaluationRow(
        id=new_id("eval"),
        kind=body.kind,
        status=EvaluationStatus.QUEUED,
        created_at=now,
        owner=owner,
        model=body.model,
        fence=0,
        losses=0,
        woken_at=now,
        request_key=request_key,
        request_sha256=digest,
    )
    served_models.resolve(session, settings, body.model)
    if body.task_results is not None:
        row.status, row.finished_at = EvaluationStatus.SUCCEEDED, now
        row.task_results = body.task_results.model_dump(mode="json")
        row.verdict = _task_verdict(body.task_results)
    else:
        limits.check_create(session, project_of(session) or DEFAULT_PROJECT, owner)
        file = usable_file(session, body)
        row.file, row.filename = file.id, file.filename
        row.against = _against(session, settings, body)
        row.grader = None if body.grader is None else body.grader.model_dump(mode="json")
        wake_ups.send_after_commit(session, TRAIN_TASK, row.id)
    session.add(row)
    try:
        session.flush()
    except IntegrityError as error:  # another transaction used the same key (PostgreSQL only)
        raise Unavailable(
            ErrorCode.UNAVAILABLE,
            "another request with this Idempotency-Key is in progress",
            hint="repeat the request: it returns the evaluation that the other request creates",
        ) from error
    return to_wire(session, row), False


def _created_earlier(session: Session, request_key: str, digest: str) -> EvaluationRow | None:
    # An admin key may have used the same Idempotency-Key in another project.
    own = select(EvaluationRow).where(EvaluationRow.request_key == request_key)
    row = session.scalar(all_projects(own))
    elsewhere = row is not None and project_of(session) not in (None, row.project_id)
    if row is not None and (elsewhere or row.request_sha256 != digest):
        where = "in another project" if elsewhere else f"(evaluation {row.id})"
        raise Conflict(
            ErrorCode.IDEMPOTENCY_CONFLICT,
            f"the Idempotency-Key was used for another request {where}",
            hint="use a new key for a new evaluation",
        )
    return row


def usable_file(session: Session, body: EvaluationCreate) -> FileRow:
    row = files.retrieve(session, body.file or "", param="file", lock={"read": True})
    if row.purpose != "fine-tune":
        raise BadRequest(
            ErrorCode.INVALID_REQUEST,
            f"file: {row.filename} has the purpose {row.purpose!r}",
            param="file",
            hint="upload the file with purpose 'fine-tune'",
        )
    if reason := refusal(row, has_grader=body.grader is not None):
        raise BadRequest(
            ErrorCode.DATASET_INVALID,
            f"file: {row.filename} cannot be evaluated: {reason}",
            param="file",
            hint=f"GET /v1/files/{row.id} lists the bad rows under validation",
        )
    return row


def refusal(row: FileRow, *, has_grader: bool) -> str | None:
    """Return the reason why a file cannot be used for an evaluation; None if the file can be used,
    or is not yet validated.

    With a grader, the rows must have prompts. Without a grader, the rows must have answers.
    """
    if has_grader:
        return files.refusal(row, "reinforcement")
    reason = files.refusal(row, "supervised")
    if reason and files.refusal(row, "reinforcement") is None:
        return f"its rows have no answers, so no loss can be measured: add a grader ({reason})"
    return reason


def _against(session: Session, settings: Settings, body: EvaluationCreate) -> str | None:
    """Return the name of the model to compare with: `against` of the request, or else the base
    model of a tuned model. Return None for a base model, for weights trained from scratch, and if
    the base model is a tuned model that another project has not shared. Raises NotFound."""
    if body.against is not None:
        served_models.resolve(session, settings, body.against, param="against")
        return body.against
    row = session.scalar(select(AdapterRow).where(AdapterRow.model == body.model))
    if row is None:
        return None
    job = session.get(JobRow, row.job_id)
    from_scratch = job is not None and bool((job.recipe or {}).get("from_scratch"))
    base = row.base_model
    is_tuned = select(AdapterRow.id).where(AdapterRow.model == base)
    is_foreign = base.startswith("ft:") and session.scalar(is_tuned) is None
    return None if from_scratch or is_foreign else base


def _task_verdict(results: TaskResults) -> str:
    words = []
    for result in results.tasks:
        for name, value in list(result.metrics.items())[:1]:
            error = result.errors.get(name)
            margin = f" ± {error:.4f}" if error is not None else ""
            words.append(f"{result.task} {name.partition(',')[0]} {value:.4f}{margin}")
    return ", ".join(words)[:_MAX_VERDICT]


def retrieve(session: Session, evaluation_id: str, *, lock: bool = False) -> EvaluationRow:
    row = session.get(EvaluationRow, evaluation_id, with_for_update=lock or None)
    if row is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no evaluation {evaluation_id!r}",
            hint="GET /v1/evaluations lists all evaluations",
        )
    return row


def list_evaluations(
    session: Session, *, after: str | None, limit: int, order: Order, model: str | None
) -> PageBuilder:
    query = select(EvaluationRow)
    if model:
        query = query.where(EvaluationRow.model == model)
    return read_newest(
        session,
        query,
        EvaluationRow,
        lambda rows: [to_wire(session, row, with_result=False) for row in rows],
        after=after,
        limit=limit,
        order=order,
        what="evaluation",
    )


def cancel(session: Session, evaluation_id: str) -> RequestedEvaluation:
    """Cancel an evaluation; its worker ends the evaluation's process within seconds."""
    row = retrieve(session, evaluation_id, lock=True)
    if row.status not in ENDED:
        row.status, row.finished_at = EvaluationStatus.CANCELLED, time.time()
        row.lease_until = None
    elif row.status != EvaluationStatus.CANCELLED:
        raise BadRequest(
            ErrorCode.NOT_CANCELLABLE,
            f"evaluation {evaluation_id!r} has already {row.status}",
            hint="only an unfinished evaluation can be cancelled",
        )
    return to_wire(session, row)


def delete(session: Session, evaluation_id: str) -> EvaluationDeleted:
    row = retrieve(session, evaluation_id, lock=True)
    if row.status not in ENDED:
        raise BadRequest(
            ErrorCode.NOT_DELETABLE,
            f"evaluation {evaluation_id!r} is {row.status}",
            hint=f"POST /v1/evaluations/{evaluation_id}/cancel cancels it",
        )
    session.delete(row)
    return EvaluationDeleted(id=evaluation_id)


def to_wire(
    session: Session, row: EvaluationRow, *, with_result: bool = True
) -> RequestedEvaluation:
    """Return the evaluation; a row that this release cannot read has the error `unreadable`."""
    names = ("id", "kind", "model", "against", "file", "filename", "status", "verdict")
    document: dict[str, Any] = {name: getattr(row, name) for name in names}
    for name in ("created_at", "started_at", "finished_at"):
        at = getattr(row, name)
        document[name] = None if at is None else int(at)
    document["owner"] = session.scalar(select(ApiKeyRow.name).where(ApiKeyRow.id == row.owner))
    stored = {"grader": row.grader, "error": row.error, "task_results": row.task_results}
    if with_result:
        stored["result"] = row.result
    try:
        return read_document(
            RequestedEvaluation, document | stored, "evaluation", version=DOCUMENT_VERSION
        )
    except ValueError as error:
        message = f"this release cannot read the evaluation: {error}"[:2000]
        return RequestedEvaluation.model_validate(
            document | {"error": {"code": ErrorCode.UNREADABLE, "message": message}}
        )


def waiting_for(session: Session, row: EvaluationRow) -> str | None:
    """Return the reason why a queued evaluation waits; None for an evaluation that is not
    queued."""
    if row.status != EvaluationStatus.QUEUED:
        return None
    file = session.get(FileRow, row.file or "")
    if file is not None and file.status == "uploaded":
        if workers.ready(session).get(LIGHT_QUEUE):
            return "the validation of its file"
        return "a worker that validates files: none is running"
    if not workers.ready(session).get("train"):
        return "a training worker: none is running"
    return "a free training worker that has the base model"

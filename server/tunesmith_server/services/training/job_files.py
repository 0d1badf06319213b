"""Files of a job: data, recipe, environment, log, metrics, report, evaluation and results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, EventKind, JobFile
from tunesmith_schema.documents import upgraded_file
from tunesmith_schema.log_lines import escaped
from tunesmith_schema.verification import VERIFICATION_FILE
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.storage import Storage, StorageUnavailable
from tunesmith_server.models import AdapterRow, EventRow, FileRow, JobRow, ReportRow
from tunesmith_server.models.event import NO_METRICS

from ..catalogue import adapters, verifications
from ..results import result_files, self_checks
from . import job_fork

MAX_LINES = 10_000
"""Maximum number of lines in a log; older events are left out."""
_MAX_WEIGHTS = 100
_ENVIRONMENT = ("attempt", "outcome", "device", "host", "versions", "settings", "choices")
_JSON, _TEXT = "application/json", "text/plain"
_JOBS = "/v1/fine_tuning/jobs"


def list_files(session: Session, job: JobRow) -> list[JobFile]:
    """Return the files of a job that exist now."""
    path = f"{_JOBS}/{job.id}"
    reported = select(func.max(ReportRow.attempt)).where(ReportRow.job_id == job.id)
    found = [*_data_files(session, job)]
    found.append(_made("recipe", "recipe.json", _JSON, f"{path}/files/recipe.json"))
    found.append(_made("log", "log.txt", _TEXT, f"{path}/files/log.txt"))
    if session.scalar(reported) is not None:
        name = "environment.json"
        found.append(_made("environment", name, _JSON, f"{path}/files/{name}"))
        found.append(_made("report", "report.json", _JSON, f"{path}/report"))
    with suppress(NotFound):
        self_checks.retrieve(session, job, None)
        found.append(_made("self_check", "self_check.json", _JSON, f"{path}/self_check"))
    if job.evaluation is not None:
        found.append(_made("evaluation", "evaluation.json", _JSON, f"{path}/evaluation"))
    for file_id in result_files.ids_of(job.id, job.state, bool(job.last_metrics)):
        content = f"/v1/files/{file_id}/content"
        found.append(_made("metrics", f"{job.id}-metrics.csv", "text/csv", content))
    return [*found, *_weights(session, job)]


def _made(kind: str, name: str, media_type: str, path: str) -> JobFile:
    return JobFile(id=name, name=name, kind=kind, media_type=media_type, path=path)


def _data_files(session: Session, job: JobRow) -> Iterator[JobFile]:
    for kind in ("training_file", "validation_file"):
        row = session.get(FileRow, getattr(job, kind) or "")
        if row is not None:
            yield JobFile(
                id=row.id,
                name=row.filename,
                kind=kind,
                media_type="application/octet-stream",
                bytes=row.bytes,
                sha256=row.sha256,
                path=f"/v1/files/{row.id}/content",
            )


def _weights(session: Session, job: JobRow) -> Iterator[JobFile]:
    """Yield each result and checkpoint as an archive, and its verification.json if there is one."""
    rows = session.scalars(
        select(AdapterRow)
        .where(AdapterRow.job_id == job.id)
        .order_by(AdapterRow.created_at.desc(), AdapterRow.id.desc())
        .limit(_MAX_WEIGHTS)
    )
    for row in rows:
        path = f"/v1/adapters/{row.id}"
        with suppress(NotFound):
            yield JobFile(
                id=f"{row.id}.tar",
                name=f"{row.id}.tar",
                kind="weights",
                media_type="application/x-tar",
                bytes=adapters.tar_bytes(row),
                path=f"{path}/content",
            )
            if any(file.name == VERIFICATION_FILE for file in adapters.files_of(row)):
                name = f"{row.id}-{VERIFICATION_FILE}"
                yield _made("verification", name, _JSON, f"{path}/verification")


def content(session: Session, storage: Storage, job: JobRow, name: str) -> tuple[bytes, str]:
    """Return the content and the media type of a file that is made for this request."""
    if name == "log.txt":
        return _log(session, job), f"{_TEXT}; charset=utf-8"
    makers: dict[str, Callable[[], Any]] = {  # Any: JSON
        "recipe.json": lambda: job_fork.body_of(job),
        "environment.json": lambda: _environment(session, storage, job),
    }
    if name not in makers:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"job {job.id!r} has no file {name!r}",
            hint=f"this route has the files {', '.join([*makers, 'log.txt'])}",
        )
    return to_json(makers[name](), indent=2) + b"\n", _JSON


def _log(session: Session, job: JobRow) -> bytes:
    """Return the newest events as lines, oldest first, without metrics and samples."""
    rows = session.execute(
        select(EventRow.created_at, EventRow.attempt, EventRow.level, EventRow.message)
        .where(EventRow.job_id == job.id, NO_METRICS, EventRow.kind != EventKind.SAMPLES)
        .order_by(EventRow.seq.desc())
        .limit(MAX_LINES)
    ).all()
    lines = [
        f"{datetime.fromtimestamp(row.created_at, UTC):%Y-%m-%dT%H:%M:%SZ} attempt {row.attempt} "
        f"{row.level} {escaped(row.message)}\n"
        for row in reversed(rows)
    ]
    return "".join(lines).encode(errors="replace")


def _environment(session: Session, storage: Storage, job: JobRow) -> Any:  # Any: JSON
    """Return device and settings of each attempt. If the result was verified, also return the
    versions of the libraries that the trainer used."""
    rows = session.scalars(
        select(ReportRow).where(ReportRow.job_id == job.id).order_by(ReportRow.attempt)
    )
    attempts = []
    for row in rows:
        stored: Any = upgraded_file(row.content)
        attempts.append({name: stored.get(name) for name in _ENVIRONMENT})
    versions: dict[str, str] | None = None
    with suppress(NotFound, StorageUnavailable):
        if job.adapter_id:
            adapter = adapters.retrieve(session, job.adapter_id)
            versions = verifications.retrieve(storage, adapter).made_with
    return {"job_id": job.id, "attempts": attempts, "versions": versions}

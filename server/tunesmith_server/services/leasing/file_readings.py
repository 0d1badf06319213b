"""Leases of uploaded files, which workers of the queue `light` read and validate. A worker claims a
file, renews its lease, and reports a result or releases the file. While the lease is valid, no
other worker reads the file. Only the janitor ends an expired lease, and then counts one more lost
worker for the file.
"""

from __future__ import annotations

import time
from functools import partial

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import (
    ErrorCode,
    FileFindings,
    FileReading,
    FileValidation,
    JobState,
    ReadingClaim,
    ReadingLease,
    RowProblem,
)
from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.errors import Conflict
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import EvaluationRow, FileRow, JobRow

from ..data import file_stats, files
from ..training import jobs, quarantine

MAX_LOST = 3
"""Number of lost workers after which a file is refused."""


def claim(session: Session, settings: Settings, file_id: str, body: ReadingClaim) -> FileReading:
    """Lease a file to a worker. In the result, `reading` is 0 if the worker gets no lease, because
    the file needs no validation or another worker reads it."""
    row = files.retrieve(session, file_id, lock=True)
    file = files.to_wire(row)
    if row.status != "uploaded" or row.reading_until is not None:
        return FileReading(file=file, reading=0, lease_seconds=settings.lease_seconds)
    row.reader, row.reading = body.worker_id, row.reading + 1
    _renew(session, settings, row)
    return FileReading(file=file, reading=row.reading, lease_seconds=settings.lease_seconds)


def renew(session: Session, settings: Settings, file_id: str, lease: ReadingLease) -> FileReading:
    """Extend the lease. Raises Conflict if the worker no longer holds the lease."""
    row = _held(session, file_id, lease)
    _renew(session, settings, row)
    return FileReading(
        file=files.to_wire(row), reading=row.reading, lease_seconds=settings.lease_seconds
    )


def give_back(
    session: Session, wake_ups: WakeUps, file_id: str, lease: ReadingLease, *, crashed: bool
) -> None:
    """End a lease without a result. `crashed`: True if the process that read the file was killed. A
    killed process counts as a lost worker; a shutdown of the worker does not count."""
    row = _held(session, file_id, lease)
    _end(session, wake_ups, row, lost=crashed)


def store_result(
    session: Session,
    wake_ups: WakeUps,
    file_id: str,
    lease: ReadingLease,
    findings: FileFindings,
) -> FileRow:
    """Store a result; queue or fail the jobs that waited for the file. Repeating the report is
    safe."""
    row = files.retrieve(session, file_id, lock=True)
    if row.status != "uploaded" and row.reading == lease.reading and row.reader == lease.worker_id:
        return row  # the worker repeats its report, because the reply was lost
    row = _held(session, file_id, lease)
    _record(session, wake_ups, row, findings.result)
    if findings.stats is not None:
        file_stats.store(session, row.id, findings.stats, findings.row_hashes)
    return row


def take_back_expired(session: Session, wake_ups: WakeUps) -> int:
    """End the leases of silent workers; return the number of files. Only the janitor calls this
    function: after a restart of the API, the janitor first gives the workers time to renew their
    leases."""
    expired = session.scalars(
        select(FileRow)
        .where(FileRow.status == "uploaded", FileRow.reading_until < epoch_now())
        .with_for_update(skip_locked=True)
    ).all()
    for row in expired:
        _end(session, wake_ups, row, lost=True)
    return len(expired)


def _renew(session: Session, settings: Settings, row: FileRow) -> None:
    now = session.execute(select(epoch_now())).scalar_one()
    row.reading_until = now + settings.lease_seconds
    row.woken_at = time.time()


def _held(session: Session, file_id: str, lease: ReadingLease) -> FileRow:
    row = files.retrieve(session, file_id, lock=True)
    if (row.reading, row.reader) != (lease.reading, lease.worker_id) or row.reading_until is None:
        raise Conflict(
            ErrorCode.FENCED_OUT,
            f"worker {lease.worker_id} no longer reads file {file_id} (reading {lease.reading})",
            hint="stop the reader: another worker reads the file, or the file has a result",
        )
    return row


def _end(session: Session, wake_ups: WakeUps, row: FileRow, *, lost: bool) -> None:
    row.reading_until = None
    row.readings += lost
    if row.readings < MAX_LOST:
        row.woken_at = time.time()
        wake_ups.send_after_commit(session, VALIDATE_FILE_TASK, row.id)
        return
    message = (
        f"the worker crashed {row.readings} times while reading the file, probably because its "
        "host ran out of memory: split the file and upload the parts"
    )
    problem = RowProblem(row=0, message=message)
    result = FileValidation(ok=False, problems=[problem], num_problems=1)
    _record(session, wake_ups, row, result)


def _record(session: Session, wake_ups: WakeUps, row: FileRow, result: FileValidation) -> None:
    row.reading_until = None
    files.record_validation(row, result)
    session.flush()
    if evaluation_id := session.scalar(
        select(EvaluationRow.id)
        .where(EvaluationRow.file == row.id, EvaluationRow.finished_at.is_(None))
        .limit(1)
    ):
        wake_ups.send_after_commit(session, TRAIN_TASK, evaluation_id)
    waiting = session.scalars(
        select(JobRow).where(
            JobRow.state == JobState.VALIDATING_FILES,
            (JobRow.training_file == row.id) | (JobRow.validation_file == row.id),
        )
    ).all()
    for job in waiting:
        queue = partial(_queue_or_fail, session, wake_ups, job)
        quarantine.guarded(session, job.id, "queued", queue)


def _queue_or_fail(session: Session, wake_ups: WakeUps, job: JobRow) -> None:
    ids = [job.training_file] + ([job.validation_file] if job.validation_file else [])
    file_rows = [row for row in (session.get(FileRow, file_id) for file_id in ids) if row]
    jobs.queue_if_validated(session, wake_ups, job, file_rows)

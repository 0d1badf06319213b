"""The janitor: a thread in each API process that mends what crashes leave behind.

Takes jobs back from silent workers, re-sends wake-ups that nobody followed, deletes expired files,
the parts of uploads that are over, and content that nothing refers to. Every round is idempotent,
so several may run.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import timedelta

from sqlalchemy import delete, exists, or_, select, update
from sqlalchemy.orm import Session

from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_server.core.database import Database, epoch_now
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import BLOB_GRACE, Storage
from tunesmith_server.models import (
    AdapterRow,
    FileRow,
    IdempotencyRow,
    JobRow,
    ResumePointRow,
    SamplesRow,
    UploadPartRow,
    WorkerRow,
)
from tunesmith_server.services import leases, resume_points, upload_completion, waiting, workers

log = logging.getLogger(__name__)

WAKE_AGAIN_SECONDS = 30.0
MAX_WAKE_UPS = 16
IDEMPOTENCY_SECONDS = 24 * 3600.0
SWEEP_SECONDS = 3600.0


class Janitor(threading.Thread):
    def __init__(
        self, settings: Settings, database: Database, storage: Storage, wake_ups: WakeUps
    ) -> None:
        super().__init__(name="janitor", daemon=True)
        self._settings, self._database = settings, database
        self._storage, self._wake_ups = storage, wake_ups
        self._stop_asked = threading.Event()
        # Workers could not report while no API was up: give each lease one more term.
        self._may_take_back = time.monotonic() + settings.lease_seconds
        self._clock_ahead: float | None = None
        self._next_sweep = time.monotonic() + SWEEP_SECONDS

    def run(self) -> None:
        while not self._stop_asked.wait(self._settings.janitor_seconds):
            try:
                self.round()
            except Exception:  # the next round may do better; a dead janitor never does
                log.exception("janitor round failed")

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(timeout=5)

    def round(self) -> None:
        with self._database.write.begin() as session:
            if self._may_judge_leases(session):
                leases.take_back_expired(session, self._settings)
                waiting.tell(session)
            self._wake_again(session)
            _forget_old(session)
            resume_points.drop_unneeded(session)
            upload_completion.expire(session)
        self._delete_parts()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP_SECONDS
            self.sweep()

    def _may_judge_leases(self, session: Session) -> bool:
        """Not until one lease after our start, nor after a leap of the database's clock, which on
        SQLite is the host's: the reports that renew leases must have had time to come."""
        now = session.execute(select(epoch_now())).scalar_one()
        steady = time.monotonic()  # after it: to begin on SQLite may have meant to wait for others
        ahead, lease = now - steady, self._settings.lease_seconds
        if self._clock_ahead is not None and ahead - self._clock_ahead > lease / 4:
            log.warning("the clock leapt by %.0f s", ahead - self._clock_ahead)
            self._may_take_back = steady + lease
        self._clock_ahead = ahead
        return steady >= self._may_take_back

    def _delete_parts(self) -> None:
        """From storage first, while no transaction is open; rows left by a crash say it again."""
        with self._database.read() as session:
            part_ids = upload_completion.leftover_parts(session)
        for part_id in part_ids:
            self._storage.delete_part(part_id)
        if part_ids:
            with self._database.write.begin() as session:
                upload_completion.forget_parts(session, part_ids)

    def sweep(self, older_than: timedelta = BLOB_GRACE) -> int:
        """Delete content that no row refers to; gives how many blobs."""
        with self._database.read() as session:
            in_use = set(session.scalars(select(FileRow.sha256)))
            in_use.update(session.scalars(select(SamplesRow.sha256)))
            in_use.update(session.scalars(select(UploadPartRow.id)))
            for files in (AdapterRow.files, ResumePointRow.files):
                for stored in session.scalars(select(files)):
                    in_use.update(file["sha256"] for file in stored)
        return self._storage.sweep(in_use, older_than)

    def _wake_again(self, session: Session) -> None:
        now = time.time()
        before, ahead = now - WAKE_AGAIN_SECONDS, now + WAKE_AGAIN_SECONDS
        # One message however many jobs wait: it wakes one worker, which goes on until none waits,
        # and idle workers ask by themselves. Messages must not pile up while all are busy. A
        # wake-up of the future was sent before the clock was set back.
        unheard = (
            workers.may_start(),
            or_(JobRow.woken_at < before, JobRow.woken_at > ahead),
        )
        job_id = session.scalar(select(JobRow.id).where(*unheard).order_by(JobRow.created_at))
        if job_id is not None:
            session.execute(update(JobRow).where(*unheard).values(woken_at=now))
            self._wake_ups.send_after_commit(session, TRAIN_TASK, job_id)
        unread_files = session.scalars(
            select(FileRow)
            .where(
                FileRow.status == "uploaded",
                or_(FileRow.woken_at < before, FileRow.woken_at > ahead),
            )
            .order_by(FileRow.created_at)
            .limit(MAX_WAKE_UPS)
        )
        for file in unread_files:
            file.woken_at = now
            self._wake_ups.send_after_commit(session, VALIDATE_FILE_TASK, file.id)


def _forget_old(session: Session) -> None:
    now = time.time()
    session.execute(
        delete(IdempotencyRow).where(IdempotencyRow.created_at < now - IDEMPOTENCY_SECONDS)
    )
    session.execute(delete(WorkerRow).where(WorkerRow.last_seen < epoch_now() - 24 * 3600.0))
    needed = exists().where(
        or_(JobRow.training_file == FileRow.id, JobRow.validation_file == FileRow.id),
        JobRow.finished_at.is_(None),
    )
    session.execute(
        delete(FileRow).where(FileRow.expires_at < now, ~needed),
        execution_options={"synchronize_session": False},
    )

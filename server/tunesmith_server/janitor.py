"""Janitor: a thread in each API process that repairs the effects of crashes.

The janitor takes jobs back from silent workers, resends lost messages that wake workers, and
deletes expired files, parts of closed uploads and unreferenced content. Every round is idempotent,
so several janitors may run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal

from sqlalchemy import delete, or_, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_server.core.database import Database, epoch_now
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import BLOB_GRACE, Storage
from tunesmith_server.identity import job_links
from tunesmith_server.models import EvaluationRow, FileRow, IdempotencyRow, JobRow, WorkerRow
from tunesmith_server.scheduling.eligibility import may_start
from tunesmith_server.services import janitor_runs, keys, sessions, workers
from tunesmith_server.services.catalogue import evaluation_leases
from tunesmith_server.services.data import files, upload_completion
from tunesmith_server.services.leasing import file_readings, leases, making_room, resume_points
from tunesmith_server.services.leasing.older_jobs import OlderJobs
from tunesmith_server.services.training import waiting

from . import garbage

log = logging.getLogger(__name__)

WAKE_AGAIN_SECONDS = 30.0
MAX_WAKE_UPS = 16
IDEMPOTENCY_SECONDS = 24 * 3600.0
SWEEP_SECONDS = 3600.0
_RECORD_SECONDS = 60.0
"""A round that deleted nothing and had no error is recorded only if the last record is at least
this many seconds old."""

Step = Callable[[Session], object]


class Janitor(threading.Thread):
    def __init__(
        self, settings: Settings, database: Database, storage: Storage, wake_ups: WakeUps
    ) -> None:
        super().__init__(name="janitor", daemon=True)
        self._settings, self._database = settings, database
        self._storage, self._wake_ups = storage, wake_ups
        self._stop_asked = threading.Event()
        # Workers could not report while the API was down, so no lease expires at first.
        self._may_take_back = time.monotonic() + settings.lease_seconds
        self._clock_ahead: float | None = None
        self._next_sweep = time.monotonic() + SWEEP_SECONDS
        self._next_record = 0.0
        self._older_jobs = OlderJobs()

    def run(self) -> None:
        while not self._stop_asked.wait(self._settings.janitor_seconds):
            try:
                self.round()
            except Exception:  # one failed round must not end the thread
                log.exception("janitor round failed")

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(timeout=5)

    def round(self) -> None:
        """Run all steps, each in its own transaction. If a step fails, for example because a
        database row is damaged, the other steps still run."""
        with self._recorded("round") as run:
            self._repair(run)
            self._delete_parts(run)
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP_SECONDS
            self.sweep()

    def _repair(self, run: janitor_runs.Run) -> None:
        settings, wake_ups = self._settings, self._wake_ups
        steps: dict[str, Step] = {
            "resend wake-ups": self._resend_wake_ups,
            "delete old rows": _delete_old_rows,
            "delete expired files": files.delete_expired,
            "delete ended sessions": sessions.delete_ended,
            "delete expired links": job_links.delete_expired,
            "drop resume points": lambda session: resume_points.drop_unneeded(session, settings),
            "expire uploads": lambda session: upload_completion.expire(session),
            "make room": making_room.make_room,
            "move evaluations": lambda session: evaluation_leases.take_back_reserved(
                session, wake_ups
            ),
        }
        if self._lease_expiry_allowed():
            steps = {
                "take back jobs": lambda session: leases.take_back_expired(session, settings),
                "take back files": lambda session: file_readings.take_back_expired(
                    session, wake_ups
                ),
                "take back evaluations": lambda session: evaluation_leases.take_back_expired(
                    session, wake_ups
                ),
                "update warnings": lambda session: waiting.update_warnings(session),
            } | steps
        if not self._older_jobs.is_done:
            steps["complete older jobs"] = self._older_jobs.round
        if keys.has_uses():
            steps["store the last use of keys"] = keys.store_uses
        if sessions.has_seen():
            steps["store the last use of sessions"] = sessions.store_seen
        for name, step in steps.items():
            try:
                with self._database.write.begin() as session:
                    step(session)
            except Exception as error:
                run.failed(name, error)
                log.exception("the janitor could not %s", name)

    def _lease_expiry_allowed(self) -> bool:
        with self._database.read() as session:
            return self._may_expire_leases(session)

    def _may_expire_leases(self, session: Session) -> bool:
        """Return True if jobs with expired leases may be taken back. After the process starts or
        the database clock jumps, workers first get one lease duration to renew their leases. On
        SQLite, the database clock is the clock of the host."""
        now = session.execute(select(epoch_now())).scalar_one()
        steady = time.monotonic()  # read after `now`, because that query may wait for other writers
        ahead, lease = now - steady, self._settings.lease_seconds
        if self._clock_ahead is not None and ahead - self._clock_ahead > lease / 4:
            jump = ahead - self._clock_ahead
            log.warning(
                "the database clock jumped by %.0f s: workers get more time to renew leases", jump
            )
            self._may_take_back = steady + lease
        self._clock_ahead = ahead
        return steady >= self._may_take_back

    def _delete_parts(self, run: janitor_runs.Run) -> None:
        """Delete the parts of closed uploads from storage, then delete their rows in a transaction.
        If a crash prevents the second deletion, the next round repeats both deletions."""
        with self._database.read() as session:
            parts = upload_completion.leftover_parts(session)
        for part_id, size in parts.items():
            self._storage.delete_part(part_id)
            run.objects, run.bytes = run.objects + 1, run.bytes + size
        if parts:
            with self._database.write.begin() as session:
                upload_completion.delete_part_rows(session, list(parts))

    def sweep(self, older_than: timedelta = BLOB_GRACE) -> int:
        """Delete the stored objects that no database row refers to; return their number."""
        with self._recorded("sweep") as run:
            found = garbage.collect(self._database, self._storage, older_than)
            run.objects, run.bytes = len(found.sizes), found.bytes
        if found.sizes:
            log.info("deleted %d unused blobs, %d bytes", len(found.sizes), found.bytes)
        return len(found.sizes)

    @contextmanager
    def _recorded(self, kind: Literal["round", "sweep"]) -> Iterator[janitor_runs.Run]:
        """Measure the duration of a round or a sweep, and store its result for
        `GET /v1/organization/storage`."""
        run, started = janitor_runs.Run(kind), time.monotonic()
        try:
            yield run
        except Exception as error:
            run.failed(f"complete the {kind}", error)
            raise
        finally:
            self._record(run, time.monotonic() - started)

    def _record(self, run: janitor_runs.Run, seconds: float) -> None:
        if run.kind == "round" and not run.is_notable and time.monotonic() < self._next_record:
            return
        self._next_record = time.monotonic() + _RECORD_SECONDS
        next_sweep_at = time.time() + max(0.0, self._next_sweep - time.monotonic())
        try:
            with self._database.write.begin() as session:
                janitor_runs.store(session, run, seconds, next_sweep_at)
        except SQLAlchemyError:  # the next round stores its own record
            log.exception("the janitor could not store its last %s", run.kind)

    def _resend_wake_ups(self, session: Session) -> None:
        now = time.time()
        before, ahead = now - WAKE_AGAIN_SECONDS, now + WAKE_AGAIN_SECONDS
        # One message serves all waiting jobs: the woken worker claims jobs until none waits,
        # and idle workers poll. More messages would pile up while all workers are busy. If
        # `woken_at` is in the future, the clock was set back.
        overdue = (
            may_start(),
            or_(JobRow.woken_at < before, JobRow.woken_at > ahead),
        )
        job_id = session.scalar(select(JobRow.id).where(*overdue).order_by(JobRow.created_at))
        if job_id is not None:
            session.execute(update(JobRow).where(*overdue).values(woken_at=now))
            self._wake_ups.send_after_commit(session, TRAIN_TASK, job_id)
        overdue_evaluations = (
            workers.evaluation_waits(),
            or_(EvaluationRow.woken_at < before, EvaluationRow.woken_at > ahead),
        )
        evaluation_id = session.scalar(select(EvaluationRow.id).where(*overdue_evaluations))
        if evaluation_id is not None:
            session.execute(
                update(EvaluationRow).where(*overdue_evaluations).values(woken_at=now),
                execution_options={"synchronize_session": False},
            )
            self._wake_ups.send_after_commit(session, TRAIN_TASK, evaluation_id)
        unread_files = session.scalars(
            select(FileRow)
            .where(
                FileRow.status == "uploaded",
                FileRow.reading_until.is_(None),
                or_(FileRow.woken_at < before, FileRow.woken_at > ahead),
            )
            .order_by(FileRow.created_at)
            .limit(MAX_WAKE_UPS)
        )
        for file in unread_files:
            file.woken_at = now
            self._wake_ups.send_after_commit(session, VALIDATE_FILE_TASK, file.id)


def _delete_old_rows(session: Session) -> None:
    now = time.time()
    session.execute(
        delete(IdempotencyRow).where(IdempotencyRow.created_at < now - IDEMPOTENCY_SECONDS)
    )
    session.execute(delete(WorkerRow).where(WorkerRow.last_seen < epoch_now() - 24 * 3600.0))

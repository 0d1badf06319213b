"""Claim records: a locked file per claimed job, to report the death of a supervisor at once.

The supervisor holds the lock while it lives. The main process of any worker of the same data
directory looks for records without a lock: it kills the processes left by the run and reports the
outcome in the record, or a lost worker.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ValidationError

from tunesmith_schema import Claim, ErrorCategory, ErrorCode, JobFailure, Outcome, Report

from .cleanup import end_processes
from .server_api import FencedOut, ServerApi, ServerRefused, ServerUnreachable
from .settings import WorkerSettings

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_END_SECONDS = 5.0


class HeldClaim(BaseModel):
    """Content of a claim record."""

    worker_id: str
    job_id: str
    attempt: int
    fence: int
    pid: int
    run_dir: str
    outcome: Outcome | None = None
    """Outcome of the attempt that the server may not know yet."""


class ClaimRecord:
    """The claim record of this supervisor."""

    def __init__(self, settings: WorkerSettings, worker_id: str, claim: Claim) -> None:
        self._claim = HeldClaim(
            worker_id=worker_id,
            job_id=claim.job_id,
            attempt=claim.attempt,
            fence=claim.fence,
            pid=os.getpid(),
            run_dir=str(settings.run_dir(claim.job_id, claim.attempt)),
        )
        self._file: LockedFile | None = None
        try:
            path = settings.claims / f"{worker_id}--{claim.job_id}-{claim.fence}.json"
            self._file = LockedFile.create(path, self._claim.model_dump_json())
        except OSError as error:  # the server then waits for the lease to expire
            log.warning("cannot write the claim record of %s: %s", claim.job_id, error)

    def record_outcome(self, outcome: Outcome) -> None:
        """Write the outcome before it is reported.

        A success is written as released, because its files are not in the record: if it cannot be
        reported, the job continues from its last resume point.
        """
        self._claim.outcome = Outcome(state="released")
        if outcome.state in ("failed", "cancelled"):
            self._claim.outcome = outcome
        if self._file is not None:
            try:
                self._file.write(self._claim.model_dump_json())
            except OSError as error:
                log.warning("cannot write the outcome of %s: %s", self._claim.job_id, error)

    def close(self, *, reported: bool) -> None:
        """Unlock the record. `reported`: remove it, because the server has the outcome or has
        released the job."""
        if self._file is not None:
            self._file.close(remove=reported)


def holder_of(record: Path) -> str:
    """Return the id of the worker that wrote the record."""
    return record.name.rpartition("--")[0]


class OrphanReporter(threading.Thread):
    """Thread of the main process that looks for records without a lock."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(name="orphan-reporter", daemon=True)
        self._settings = settings
        self._stop_requested = threading.Event()

    def run(self) -> None:
        with ServerApi(self._settings) as api:
            while not self._stop_requested.wait(LOOK_SECONDS):
                try:
                    report_orphans(self._settings, api)
                except OSError as error:
                    log.warning("cannot read the claim records: %s", error)

    def stop(self) -> None:
        self._stop_requested.set()
        if self.is_alive():
            self.join(timeout=5)


def report_orphans(settings: WorkerSettings, api: ServerApi) -> None:
    """Report each claim whose supervisor died. A record stays until its report succeeds."""
    for path in sorted(settings.claims.glob("*.json")):
        with open_abandoned(path) as content:
            if content is not None and _report(content, api):
                path.unlink(missing_ok=True)


def _report(content: str, api: ServerApi) -> bool:
    """Report for a dead supervisor; False if the record must stay."""
    try:
        held = HeldClaim.model_validate_json(content)
    except ValidationError:  # cut off by a kill; the server waits for the lease to expire
        return True
    if alive := end_processes(Path(held.run_dir), None, _END_SECONDS):
        log.error("cannot kill processes of %s: %s", held.job_id, alive)
        return False  # the lease must expire before another trainer starts
    failure = JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.WORKER_LOST,
        message=f"worker {held.worker_id} lost process {held.pid}, which supervised attempt "
        f"{held.attempt}",
        hint="a person or the kernel (out of memory) killed the process: run `dmesg` on its host",
    )
    outcome = held.outcome or Outcome(state="failed", error=failure)
    report = Report(
        worker_id=held.worker_id, attempt=held.attempt, fence=held.fence, outcome=outcome
    )
    try:
        api.report(held.job_id, report, timeout=10.0)
        log.warning("reported %s for supervisor %d, which died", held.job_id, held.pid)
    except ServerUnreachable as error:
        log.info("report of %s delayed: %s", held.job_id, error)
        return False
    except (FencedOut, ServerRefused) as error:
        log.info("%s has another owner: %s", held.job_id, error)
    return True


class LockedFile:
    """A file locked (flock) from `create` until `close` or the end of the process.

    The kernel releases the lock however the process ends, also for other containers that share the
    volume. A forked child holds the lock as well.
    """

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self._file = path, file

    @classmethod
    def create(cls, path: Path, content: str) -> LockedFile:
        """Create the file. It gets its name once the lock is held, so nobody sees it unlocked."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        file = part.open("w+", encoding="utf-8")
        fcntl.flock(file, fcntl.LOCK_EX)
        locked = cls(path, file)
        locked.write(content)
        part.replace(path)
        return locked

    def write(self, content: str) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._file.write(content)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self, *, remove: bool) -> None:
        if remove:
            self.path.unlink(missing_ok=True)
        _unlock(self._file)


@contextmanager
def open_abandoned(path: Path) -> Iterator[str | None]:
    """Lock the file of a dead process and yield its content; None if the writer lives or the file
    is gone."""
    try:
        file = path.open("r+", encoding="utf-8")
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file between the two lines above.
        same = path.exists() and os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
        yield file.read() if same else None
    except BlockingIOError:
        yield None
    finally:
        _unlock(file)


def is_held(path: Path) -> bool:
    """Return True if the process that wrote the file lives."""
    with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _unlock(file: IO[str]) -> None:
    # Closing is not enough: a forked child holds the lock as well.
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()

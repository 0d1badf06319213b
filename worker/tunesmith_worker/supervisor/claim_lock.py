"""Claim records: one locked file for each claimed job.

A supervisor holds the lock while its process runs, so an unlocked record shows a dead supervisor.
All workers with the same data directory look for unlocked records in their main process. For each
unlocked record, a worker kills the run's remaining processes and reports the recorded outcome. If
the record has no outcome, the worker reports a lost worker.
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
from .identity import WorkerIdentity
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
    secret: str = ""
    """Secret of the worker that claimed the job.

    If this worker dies, another worker on this host reports the outcome with this secret.
    """
    outcome: Outcome | None = None
    """Outcome of the attempt; None until the outcome is recorded."""


class ClaimRecord:
    """Claim record of this supervisor."""

    def __init__(
        self, settings: WorkerSettings, worker_id: str, claim: Claim, secret: str = ""
    ) -> None:
        """`secret`: secret of this worker; see `HeldClaim.secret`."""
        self._claim = HeldClaim(
            worker_id=worker_id,
            secret=secret,
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
        except OSError as error:  # the server waits until the lease expires
            log.warning("cannot write the claim record of %s: %s", claim.job_id, error)

    def record_outcome(self, outcome: Outcome) -> None:
        """Write the outcome to the claim record, before the supervisor reports the outcome.

        A success is written as `released`, because the report of a success needs the output files,
        which the record does not contain. If the supervisor dies before it reports the success,
        another worker reports `released`. The job then continues from its last resume point.
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
        """Unlock the record.

        `reported`: True if the server has the outcome or has given the job to another worker. The
        record is then no longer needed, and is removed."""
        if self._file is not None:
            self._file.close(remove=reported)


def holder_of(record: Path) -> str:
    """Return the id of the worker that wrote a record."""
    return record.name.rpartition("--")[0]


class OrphanReporter(threading.Thread):
    """Thread in the main process that looks for unlocked claim records."""

    def __init__(self, settings: WorkerSettings, identity: WorkerIdentity) -> None:
        super().__init__(name="orphan-reporter", daemon=True)
        self._settings, self._identity = settings, identity
        self._stop_requested = threading.Event()

    def run(self) -> None:
        with ServerApi(self._settings, self._identity) as api:
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
    """Report all claims of dead supervisors. A record is removed after its report succeeds."""
    for path in sorted(settings.claims.glob("*.json")):
        with open_abandoned(path) as content:
            if content is not None and _report(content, api):
                path.unlink(missing_ok=True)


def _report(content: str, api: ServerApi) -> bool:
    try:
        held = HeldClaim.model_validate_json(content)
    except ValidationError:  # incomplete record; the server waits for the lease to expire
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
        # The dead worker holds the lease, so the report carries the dead worker's credential.
        dead = WorkerIdentity(worker_id=held.worker_id, queue="train", secret=held.secret)
        api.acting_as(dead).report(held.job_id, report, timeout=10.0)
        log.warning("reported the outcome of %s for the dead supervisor %d", held.job_id, held.pid)
    except ServerUnreachable as error:
        log.info("report of %s delayed: %s", held.job_id, error)
        return False
    except (FencedOut, ServerRefused) as error:
        log.info("another worker holds %s: %s", held.job_id, error)
    return True


class LockedFile:
    """File that is locked (flock) from `create` until `close` or the end of the process.

    The kernel releases the lock when the process ends for any reason. The lock also works between
    containers that share the volume. A forked child of the process also holds the lock.
    """

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self._file = path, file

    @classmethod
    def create(cls, path: Path, content: str) -> LockedFile:
        """Create and lock the file under a temporary name, then rename it to `path`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+")
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
    """Lock a dead process's file and yield its content.

    Yields None if the process is alive or the file no longer exists."""
    try:
        file = path.open("r+", encoding="utf-8")
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have removed the file after it was opened.
        same = path.exists() and os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
        yield file.read() if same else None
    except BlockingIOError:
        yield None
    finally:
        _unlock(file)


def is_held(path: Path) -> bool:
    """Return True if the process that wrote the file is alive."""
    with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _unlock(file: IO[str]) -> None:
    # Closing alone would not unlock the file, because a forked child also holds the lock.
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()

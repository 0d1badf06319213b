"""A claimed job on disk, so that a death of its supervisor is told to the server at once.

The supervisor locks the record while it lives. Whoever of the same data directory finds one that
nobody holds (the worker's main process, a worker that starts) ends what the run has left and
reports for the dead: a lost process is a bad attempt; an end that could not be told is told now.
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
    """The record's content."""

    worker_id: str
    job_id: str
    attempt: int
    fence: int
    pid: int
    run_dir: str
    outcome: Outcome | None = None
    """How it ended, while the server does not know."""


class ClaimRecord:
    """The supervisor's end."""

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
        except OSError as error:  # then the lease says it, later
            log.warning("no record of the claim on %s: %s", claim.job_id, error)

    def ends(self, outcome: Outcome) -> None:
        """Note the end before it is told. What a success still has to tell is more than this: if
        it cannot be told, the job goes on from its last resume point."""
        self._claim.outcome = Outcome(state="released")
        if outcome.state in ("failed", "cancelled"):
            self._claim.outcome = outcome
        if self._file is not None:
            try:
                self._file.write(self._claim.model_dump_json())
            except OSError as error:
                log.warning("the end of %s is not noted: %s", self._claim.job_id, error)

    def close(self, *, told: bool) -> None:
        """`told`: the server knows the end, or that the job is no longer ours."""
        if self._file is not None:
            self._file.close(remove=told)


def holder_of(record: Path) -> str:
    """The id of the worker whose claim it is."""
    return record.name.rpartition("--")[0]


class OrphanReporter(threading.Thread):
    """The main process's end: finds records that nobody holds any more."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(name="watchman", daemon=True)
        self._settings = settings
        self._stop_asked = threading.Event()

    def run(self) -> None:
        with ServerApi(self._settings) as api:
            while not self._stop_asked.wait(LOOK_SECONDS):
                try:
                    report_orphans(self._settings, api)
                except OSError as error:
                    log.warning("records of claims cannot be read: %s", error)

    def stop(self) -> None:
        self._stop_asked.set()
        if self.is_alive():
            self.join(timeout=5)


def report_orphans(settings: WorkerSettings, api: ServerApi) -> None:
    """Report for each claim whose supervisor has died; what cannot be told yet stays."""
    for path in sorted(settings.claims.glob("*.json")):
        with abandoned(path) as content:
            if content is not None and _told(content, api):
                path.unlink(missing_ok=True)


def _told(content: str, api: ServerApi) -> bool:
    try:
        held = HeldClaim.model_validate_json(content)
    except ValidationError:  # killed while it was being written: the lease says it
        return True
    if left := end_processes(Path(held.run_dir), None, _END_SECONDS):
        log.error("processes of %s cannot be killed: %s", held.job_id, left)
        return False  # its lease lapses before another trainer may begin
    failure = JobFailure(
        category=ErrorCategory.INFRASTRUCTURE,
        code=ErrorCode.WORKER_LOST,
        message=f"worker {held.worker_id} lost the process {held.pid} that held the job in "
        f"attempt {held.attempt}",
        hint="somebody killed it, or the kernel did for lack of memory: `dmesg` on its host",
    )
    outcome = held.outcome or Outcome(state="failed", error=failure)
    report = Report(
        worker_id=held.worker_id, attempt=held.attempt, fence=held.fence, outcome=outcome
    )
    try:
        api.report(held.job_id, report, timeout=10.0)
        log.warning("told the server of %s for a process that has died", held.job_id)
    except ServerUnreachable as error:
        log.info("%s: %s", held.job_id, error)
        return False
    except (FencedOut, ServerRefused) as error:
        log.info("%s is no longer ours: %s", held.job_id, error)
    return True


class LockedFile:
    """Ours from `create` until `close`, or the process's end."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self._file = path, file

    @classmethod
    def create(cls, path: Path, content: str) -> LockedFile:
        """Nobody sees it unlocked: it gets its name once the lock is held."""
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
def abandoned(path: Path) -> Iterator[str | None]:
    """What a dead process left, locked meanwhile; None: its writer lives, or it is gone."""
    try:
        file = path.open("r+", encoding="utf-8")
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another may have dealt with it between the two lines above.
        same = path.exists() and os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
        yield file.read() if same else None
    except BlockingIOError:
        yield None
    finally:
        _unlock(file)


def is_held(path: Path) -> bool:
    """Whether the process that wrote it lives."""
    with contextlib.suppress(FileNotFoundError), path.open("r+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _unlock(file: IO[str]) -> None:
    # Not by closing alone: a process that was forked meanwhile has the lock as well.
    fcntl.flock(file, fcntl.LOCK_UN)
    file.close()

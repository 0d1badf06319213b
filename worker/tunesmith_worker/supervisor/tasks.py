"""Celery tasks: train jobs and validate uploaded files. Heavy work runs in child processes."""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from celery import Celery, current_app

from tunesmith_schema import FileReading, ReadingEnd, ReadingLease, ReadingResult
from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK

from .child.check_upload import ReaderKilled, ReadingStopped, check_upload
from .device_health import DeviceHealth
from .identity import WorkerIdentity
from .launcher import Launcher
from .server_api import FencedOut, ServerApi, ServerRefused, ServerUnreachable
from .settings import WorkerSettings
from .shutdown import ShutdownState
from .supervise import supervise

log = logging.getLogger(__name__)

SEND_TRIES = 30
SEND_AGAIN_SECONDS = 2.0
BEATS_PER_LEASE = 4


def register(
    app: Celery,
    settings: WorkerSettings,
    identity: WorkerIdentity,
    shutdown: ShutdownState,
    launcher: Launcher,
    health: DeviceHealth,
) -> None:
    """Register the tasks of this worker with `app`."""

    def train(job_id: str) -> None:
        # Ignore the message's job id: the server assigns the oldest waiting job.
        with ServerApi(settings, identity) as api:
            try:
                while not shutdown.is_requested() and supervise(
                    settings,
                    api,
                    identity.worker_id,
                    shutdown.is_requested,
                    launcher,
                    shutdown.is_immediate,
                    health,
                ):
                    pass
            except ServerUnreachable as error:
                log.warning("no job claimed: %s", error)  # the next hello wakes the pool again

    def validate_file(file_id: str) -> None:
        with ServerApi(settings, identity) as api:
            read_upload(api, identity.worker_id, file_id)

    app.task(train, name=TRAIN_TASK)
    app.task(validate_file, name=VALIDATE_FILE_TASK)


def run_task(name: str, subject_id: str) -> None:
    """Run a registered task that no message asked for. The heartbeat calls this function in the
    pool's process."""
    try:
        current_app.tasks[name].run(subject_id)
    except Exception:
        log.exception("%s %s failed", name, subject_id)


def read_upload(api: ServerApi, worker_id: str, file_id: str) -> None:
    """Validate an uploaded file and report the result. Repeated calls are safe: the server leases
    the file to one reader."""
    try:
        claim = api.claim_reading(file_id, worker_id)
    except FencedOut:
        log.info("%s has been deleted", file_id)
        return
    if claim.reading == 0:
        return
    lease = ReadingLease(worker_id=worker_id, reading=claim.reading)
    with LeaseRenewal(api, file_id, lease, claim.lease_seconds) as renewal:
        try:
            result = _read(api, lease, claim, renewal)
        except ReadingStopped:
            log.warning("%s is no longer this worker's: its reading has stopped", file_id)
            return
        except BaseException as error:
            # The file is to blame only if its own reader was killed, for example for its memory.
            crashed = isinstance(error, ReaderKilled) and error.by_kill
            end = ReadingEnd(**lease.model_dump(), crashed=crashed)
            _give_back(api, file_id, end)
            raise
        log.info(
            "%s: %d rows, %d problems",
            claim.file.filename,
            result.result.rows,
            result.result.num_problems,
        )
        try:
            _send(api, file_id, result)
        except FencedOut as error:
            log.warning("the result of %s came too late: %s", file_id, error)


def _read(
    api: ServerApi, lease: ReadingLease, claim: FileReading, renewal: LeaseRenewal
) -> ReadingResult:
    file = claim.file
    assert file.sha256 is not None, "the server hashes every file"
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder:
        path = Path(folder) / "upload"
        api.fetch_file(file.id, file.sha256, path)
        validation = check_upload(path, file.filename, stopped=renewal.is_lost)
    return ReadingResult(**lease.model_dump(), result=validation)


class LeaseRenewal:
    """Thread that renews a reading's lease until the block ends."""

    def __init__(
        self, api: ServerApi, file_id: str, lease: ReadingLease, lease_seconds: float
    ) -> None:
        self._api, self._file_id, self._lease = api, file_id, lease
        self._seconds = lease_seconds / BEATS_PER_LEASE
        self._ended, self._lost = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._renew, name="reading-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join(timeout=5)

    def is_lost(self) -> bool:
        """Return True if the server has given the file to another worker."""
        return self._lost.is_set()

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                reading = self._api.renew_reading(self._file_id, self._lease)
                self._seconds = reading.lease_seconds / BEATS_PER_LEASE
            except (FencedOut, ServerRefused) as error:
                log.warning("the lease of %s is lost: %s", self._file_id, error)
                self._lost.set()
                return
            except ServerUnreachable as error:  # the reading continues; the next beat tries again
                log.warning("the lease of %s was not renewed: %s", self._file_id, error)


def _give_back(api: ServerApi, file_id: str, end: ReadingEnd) -> None:
    try:
        api.give_back_reading(file_id, end)
    except (FencedOut, ServerRefused, ServerUnreachable) as error:
        log.warning("%s not given back: %s", file_id, error)  # its lease expires


def _send(api: ServerApi, file_id: str, result: ReadingResult) -> None:
    """Send the result; retry while the server is unreachable.

    A lost result would mean reading the file again, which can take long."""
    for _ in range(SEND_TRIES - 1):
        try:
            return api.send_reading(file_id, result)
        except ServerUnreachable as error:
            log.warning("validation of %s not sent yet: %s", file_id, error)
            time.sleep(SEND_AGAIN_SECONDS)
    api.send_reading(file_id, result)

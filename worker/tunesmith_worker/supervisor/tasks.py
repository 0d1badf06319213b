"""Celery tasks: run jobs and evaluations, and validate uploaded files. Heavy work runs in child
processes."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

from celery import Celery, current_app

from tunesmith_schema import FileReading, ReadingEnd, ReadingLease, ReadingResult
from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK

from .child.check_upload import ReaderKilled, ReadingStopped, check_upload
from .device_health import DeviceHealth
from .identity import WorkerIdentity
from .launcher import Launcher
from .leased.evaluations import evaluate_next
from .leased.renewal import LeaseRenewal
from .server_api import FencedOut, ServerApi, ServerRefused, ServerUnreachable
from .settings import WorkerSettings
from .shutdown import ShutdownState
from .supervise import supervise

log = logging.getLogger(__name__)

SEND_TRIES = 30
SEND_AGAIN_SECONDS = 2.0


def register(
    app: Celery,
    settings: WorkerSettings,
    identity: WorkerIdentity,
    shutdown: ShutdownState,
    launcher: Launcher,
    health: DeviceHealth,
) -> None:
    """Register the tasks of this worker with `app`."""

    def evaluate(api: ServerApi) -> bool:
        return evaluate_next(
            settings, api, identity.worker_id, shutdown.is_requested, launcher, health
        )

    def run_job(api: ServerApi) -> bool:
        return supervise(
            settings,
            api,
            identity.worker_id,
            shutdown.is_requested,
            launcher,
            shutdown.is_immediate,
            health,
        )

    def train(job_id: str) -> None:
        # Ignore the message's id: the server assigns the oldest waiting job or evaluation.
        with ServerApi(settings, identity) as api:
            try:
                while not shutdown.is_requested() and (evaluate(api) or run_job(api)):
                    pass
            except ServerUnreachable as error:
                log.warning("no work claimed: %s", error)  # the next hello wakes the pool again

    def validate_file(file_id: str) -> None:
        with ServerApi(settings, identity) as api:
            read_upload(api, identity.worker_id, file_id)

    app.task(train, name=TRAIN_TASK)
    app.task(validate_file, name=VALIDATE_FILE_TASK)


def run_task(name: str, subject_id: str) -> None:
    """Run a registered task without a broker message.

    The heartbeat calls this function in the pool's process.
    """
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

    def renew() -> float:
        return api.renew_reading(file_id, lease).lease_seconds

    with LeaseRenewal(renew, claim.lease_seconds, file_id) as renewal:
        try:
            result = _read(api, lease, claim, renewal)
        except ReadingStopped:
            log.warning("stopped reading %s: another worker has its lease now", file_id)
            return
        except BaseException as error:
            # Blame the file only if its own reader was killed, for example for its memory use.
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
        findings = check_upload(path, file.filename, stopped=renewal.is_lost)
    return ReadingResult(**lease.model_dump(), **dict(findings))


def _give_back(api: ServerApi, file_id: str, end: ReadingEnd) -> None:
    try:
        api.give_back_reading(file_id, end)
    except (FencedOut, ServerRefused, ServerUnreachable) as error:
        log.warning("%s not given back: %s", file_id, error)  # the lease of the file will expire


def _send(api: ServerApi, file_id: str, result: ReadingResult) -> None:
    """Send the result; retry while the server is unreachable.

    If a result is lost, the file must be read again, which can take long.
    """
    for _ in range(SEND_TRIES - 1):
        try:
            return api.send_reading(file_id, result)
        except ServerUnreachable as error:
            log.warning("validation of %s not sent yet: %s", file_id, error)
            time.sleep(SEND_AGAIN_SECONDS)
    api.send_reading(file_id, result)

"""Celery tasks: train jobs and validate uploaded files. Heavy work runs in child processes."""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path

from celery import Celery

from tunesmith_schema import FileValidation
from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_worker.supervisor.child.check_upload import check_upload

from .device_health import DeviceHealth
from .identity import WorkerIdentity
from .launcher import Launcher
from .server_api import ServerApi, ServerUnreachable
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
            read_upload(api, file_id)

    app.task(train, name=TRAIN_TASK)
    app.task(validate_file, name=VALIDATE_FILE_TASK)


def read_upload(api: ServerApi, file_id: str) -> None:
    """Validate an uploaded file and report the result. Repeated calls are safe."""
    file = api.file(file_id)
    if file.status != "uploaded" or file.sha256 is None:
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder:
        path = Path(folder) / "upload"
        api.fetch_file(file_id, file.sha256, path)
        # Announce the reading only now, so that failed downloads do not count as attempts to read
        # the file.
        if api.begin_reading(file_id).status != "uploaded":
            return
        validation = check_upload(path, file.filename)
    log.info("%s: %d rows, %d problems", file.filename, validation.rows, validation.num_problems)
    _send(api, file_id, validation)


def _send(api: ServerApi, file_id: str, validation: FileValidation) -> None:
    """Send the result; retry while the server is unreachable.

    A lost result would mean reading the file again, which can take long."""
    for _ in range(SEND_TRIES - 1):
        try:
            return api.send_validation(file_id, validation)
        except ServerUnreachable as error:
            log.warning("validation of %s not sent yet: %s", file_id, error)
            time.sleep(SEND_AGAIN_SECONDS)
    api.send_validation(file_id, validation)

"""The Celery tasks: thin wrappers. Everything heavy lies behind a process boundary."""

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
    worker_id: str,
    stopping: ShutdownState,
    launcher: Launcher,
    guard: DeviceHealth,
) -> None:
    """Give `app` the tasks, bound to this worker."""

    def train(job_id: str) -> None:
        # Whatever job the message speaks of: the server hands out the best one, until none waits.
        with ServerApi(settings) as api:
            try:
                while not stopping() and supervise(
                    settings, api, worker_id, stopping, launcher, stopping.at_once, guard
                ):
                    pass
            except ServerUnreachable as error:
                log.warning("nothing claimed: %s", error)  # the next hello wakes us again

    def validate_file(file_id: str) -> None:
        with ServerApi(settings) as api:
            read_upload(api, file_id)

    app.task(train, name=TRAIN_TASK)
    app.task(validate_file, name=VALIDATE_FILE_TASK)


def read_upload(api: ServerApi, file_id: str) -> None:
    """Read an uploaded data set and report what is in it. Doing it twice is harmless."""
    file = api.file(file_id)
    if file.status != "uploaded" or file.sha256 is None:
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder:
        path = Path(folder) / "upload"
        api.fetch_file(file_id, file.sha256, path)
        # Only now: what went wrong so far was not the file's doing.
        if api.begin_reading(file_id).status != "uploaded":
            return
        found = check_upload(path, file.filename)
    log.info("%s: %d rows, %d problems", file.filename, found.rows, found.num_problems)
    _send(api, file_id, found)


def _send(api: ServerApi, file_id: str, found: FileValidation) -> None:
    """Reading may have taken long, so a server that is away for a moment is waited for."""
    for _ in range(SEND_TRIES - 1):
        try:
            return api.send_validation(file_id, found)
        except ServerUnreachable as error:
            log.warning("the verdict on %s waits: %s", file_id, error)
            time.sleep(SEND_AGAIN_SECONDS)
    api.send_validation(file_id, found)

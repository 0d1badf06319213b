"""The Celery tasks: thin wrappers. Everything heavy lies behind a process boundary."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from celery import Celery

from tunesmith_schema import FileValidation, RowProblem
from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK

from .server_api import ServerApi, ServerUnreachable
from .settings import WorkerSettings
from .supervise import supervise

log = logging.getLogger(__name__)


def register(
    app: Celery, settings: WorkerSettings, worker_id: str, stopping: Callable[[], bool]
) -> None:
    """Give `app` the tasks, bound to this worker."""

    def train(job_id: str) -> None:
        # Whatever job the message speaks of: the server hands out the best one, until none waits.
        with ServerApi(settings) as api:
            try:
                while not stopping() and supervise(settings, api, worker_id, stopping):
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
    from .data.rows import validate_file  # pyarrow: only the light worker pays for it

    file = api.file(file_id)
    if file.status != "uploaded" or file.sha256 is None:
        return
    with tempfile.TemporaryDirectory(prefix="tunesmith-") as folder:
        path = Path(folder) / "upload"
        api.fetch_file(file_id, file.sha256, path)
        try:
            found = validate_file(path, file.filename)
        except Exception as error:  # a bug of ours must not leave the file unread for ever
            log.exception("cannot read %s", file.filename)
            message = f"the file could not be read: {type(error).__name__}: {error}"[:500]
            problem = RowProblem(row=0, message=message)
            found = FileValidation(ok=False, problems=[problem], num_problems=1)
    for problem in found.problems:
        problem.message = problem.message[:500]  # it may quote what the row holds
    log.info("%s: %d rows, %d problems", file.filename, found.rows, found.num_problems)
    api.send_validation(file_id, found)

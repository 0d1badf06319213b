"""Shut down a worker with SIGTERM, or drain it with `tunesmith worker drain`.

A second SIGTERM shuts the worker down immediately. The main process and the pool's process share a
counter of shutdown requests. The counter has no lock, because a signal handler must not wait for a
lock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from multiprocessing.sharedctypes import RawValue
from pathlib import Path

from tunesmith_schema.queue import TRAIN_QUEUE

from .claim_lock import LockedFile, holder_of, is_held
from .settings import WorkerSettings

DRAINING = "draining"
CLAIM_SECONDS = 1.0
"""Maximum seconds until a worker that is claiming a job has written its claim record."""


class ShutdownState:
    def __init__(self, settings: WorkerSettings, worker_id: str) -> None:
        """Register the worker for `tunesmith worker drain`.

        Create this object before the pool forks.
        """
        self._requests = RawValue("i", 0)
        path = settings.workers / f"{worker_id}.json"
        content = {"pid": os.getpid(), "host": socket.gethostname()}
        self._file = LockedFile.create(path, json.dumps(content))
        self._drain = _drain_file(path)

    def request(self) -> None:
        """Request a shutdown.

        The first call lets the trainer save a resume point before the job is released. A second
        call releases the job immediately."""
        self._requests.value += 1

    def is_requested(self) -> bool:
        """Return True if the worker must release its job and must not claim another."""
        return bool(self._requests.value) or self.is_draining()

    def is_immediate(self) -> bool:
        return bool(self._requests.value > 1)

    def is_draining(self) -> bool:
        return self._drain.exists()

    def close(self) -> None:
        self._drain.unlink(missing_ok=True)
        self._file.close(remove=True)


def drain(settings: WorkerSettings, *, wait: bool) -> int:
    """Tell the training workers of this host to claim no job and to release their current jobs.

    The worker processes do not exit, because a service manager would restart them. `wait`: True to
    wait until no worker holds a job. Returns the exit status.
    """
    workers = _train_workers_here(settings)
    if not workers:
        sys.stderr.write(
            f"error: no training worker with the data directory {settings.data_dir} runs on this "
            "host: set TUNESMITH_DATA_DIR to the worker's data directory, and run this command on "
            "its host (docker compose exec train tunesmith worker drain)\n"
        )
        return 1
    for path in workers:
        _drain_file(path).touch()
    _print_state(workers, "draining: claims no new job")
    if wait:
        time.sleep(CLAIM_SECONDS)
        while _workers_with_jobs(settings) & {path.stem for path in workers}:
            time.sleep(0.2)
        _print_state(workers, "drained: holds no job and can be stopped")
    return 0


def _train_workers_here(settings: WorkerSettings) -> list[Path]:
    """Return the files of training workers that run on this host or in this container."""
    workers = []
    for path in sorted(settings.workers.glob("*.json")):
        if not is_held(path):
            path.unlink(missing_ok=True)
            _drain_file(path).unlink(missing_ok=True)
        elif path.name.startswith(f"{TRAIN_QUEUE}@") and (
            json.loads(path.read_text())["host"] == socket.gethostname()
        ):
            workers.append(path)
    return workers


def _workers_with_jobs(settings: WorkerSettings) -> set[str]:
    return {holder_of(path) for path in settings.claims.glob("*.json") if is_held(path)}


def _drain_file(path: Path) -> Path:
    return path.with_suffix(".drain")


def _print_state(workers: list[Path], state: str) -> None:
    for path in workers:
        sys.stdout.write(f"{path.stem}: {state}\n")
    sys.stdout.flush()

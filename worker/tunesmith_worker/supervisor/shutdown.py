"""Why a worker takes nothing new: SIGTERM (twice: at once), or that it is being drained.

Shared by the worker's main process and the pool it forks; holds no lock, since a signal handler
writes it.
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

DRAINING = "it is being drained"
CLAIM_SECONDS = 1.0
"""A claim may be under way, and have no record yet."""


class ShutdownState:
    def __init__(self, settings: WorkerSettings, worker_id: str) -> None:
        """Shows the worker to `tunesmith worker drain`; before the pool forks."""
        self._asked = RawValue("i", 0)
        path = settings.workers / f"{worker_id}.json"
        content = {"pid": os.getpid(), "host": socket.gethostname()}
        self._file = LockedFile.create(path, json.dumps(content))
        self._drain = _drain_file(path)

    def ask(self) -> None:
        """Once: let the job go at a resume point; twice: at once."""
        self._asked.value += 1

    def __call__(self) -> bool:
        """Whether the job is to be let go, and none taken."""
        return bool(self._asked.value) or self.draining()

    def at_once(self) -> bool:
        return bool(self._asked.value > 1)

    def draining(self) -> bool:
        return self._drain.exists()

    def close(self) -> None:
        self._drain.unlink(missing_ok=True)
        self._file.close(remove=True)


def drain(settings: WorkerSettings, *, wait: bool) -> int:
    """Tell this host's train workers to take nothing new and to let their jobs go.

    They stay up, so that no supervisor starts them again, until they are stopped. `wait`: until
    they hold no job. Gives the exit status.
    """
    found = _workers_here(settings)
    if not found:
        sys.stderr.write(
            f"error: no train worker of {settings.data_dir} runs on this host: set "
            "TUNESMITH_DATA_DIR to its data directory, and run this where it runs "
            "(docker compose exec train tunesmith worker drain)\n"
        )
        return 1
    for path in found:
        _drain_file(path).touch()
    _say(found, "draining: takes no new job")
    if wait:
        time.sleep(CLAIM_SECONDS)
        while _holders(settings) & {path.stem for path in found}:
            time.sleep(0.2)
        _say(found, "drained: holds no job, and may be stopped")
    return 0


def _workers_here(settings: WorkerSettings) -> list[Path]:
    """Files of the workers that live on this host (or in this container)."""
    found = []
    for path in sorted(settings.workers.glob("*.json")):
        if not is_held(path):
            path.unlink(missing_ok=True)
            _drain_file(path).unlink(missing_ok=True)
        elif path.name.startswith(f"{TRAIN_QUEUE}@") and (
            json.loads(path.read_text())["host"] == socket.gethostname()
        ):
            found.append(path)
    return found


def _holders(settings: WorkerSettings) -> set[str]:
    """Ids of workers that hold a job."""
    return {holder_of(path) for path in settings.claims.glob("*.json") if is_held(path)}


def _drain_file(path: Path) -> Path:
    return path.with_suffix(".drain")


def _say(found: list[Path], what: str) -> None:
    for path in found:
        sys.stdout.write(f"{path.stem}: {what}\n")
    sys.stdout.flush()

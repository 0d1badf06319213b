"""One running service whose processes the campaign kills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import tunesmith

from ..end_to_end.service import alive, command_line, descendants, has_run


class Stack(ABC):
    """Service that starts its killed processes again by itself."""

    name: ClassVar[str]
    targets: ClassVar[tuple[str, ...]]
    train_workers: ClassVar[int]
    """Number of training workers. There is one more unfinished job than workers; it waits."""

    def __init__(self, root: Path, models: Path) -> None:
        self.root, self.models = root, models
        self._clients: list[tunesmith.Client] = []
        root.mkdir()

    @abstractmethod
    def start(self) -> None:
        """Start the service and wait until it is ready."""

    @abstractmethod
    def stop(self) -> None:
        """Stop all processes."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @property
    @abstractmethod
    def api_key(self) -> str: ...

    @property
    @abstractmethod
    def database_url(self) -> str: ...

    @property
    @abstractmethod
    def runs(self) -> list[Path]:
        """Folders of run directories, one per data directory of a training worker."""

    @abstractmethod
    def pids(self, target: str) -> list[int]:
        """Return the processes of a target that are alive; only descendants of this process."""

    @abstractmethod
    def exits(self) -> list[str]:
        """Return the ends of processes that no kill explains."""

    @property
    @abstractmethod
    def logs(self) -> list[Path]: ...

    def client(self) -> tunesmith.Client:
        """Return a client that is closed together with the stack."""
        self._clients.append(tunesmith.Client(base_url=self.url, api_key=self.api_key))
        return self._clients[-1]

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.stop()


def in_worker(main: int) -> dict[str, list[int]]:
    """Return the processes of a Celery worker: its main process, pool and trainers with a run."""
    below = [pid for pid in descendants(main) if alive(pid)]
    command = command_line(main)
    return {
        "main": [main] if alive(main) else [],
        "pool": [pid for pid in below if command and command_line(pid) == command],
        "trainer": [
            pid
            for pid in below
            if "tunesmith_worker.trainer " in command_line(pid) and has_run(pid)
        ],
    }

"""Observer of each job's running trainers. It is independent of the service."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

from ..end_to_end.service import alive

LOOK_SECONDS = 0.02


class Watcher(threading.Thread):
    """Thread that watches every process working in a run directory below `runs`."""

    def __init__(self, runs: Path) -> None:
        super().__init__(name="watcher", daemon=True)
        self._runs, self._over = runs.resolve(), threading.Event()
        self.together: dict[str, int] = defaultdict(int)
        """Maximum number of trainers alive at the same time, by job."""
        self.looks = 0

    def __enter__(self) -> Watcher:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for job, pids in self.trainers().items():
                self.together[job] = max(self.together[job], len(pids))
            self.looks += 1

    def trainers(self) -> dict[str, list[int]]:
        """Return the pids of running trainers by job, without zombies."""
        pids = defaultdict(list)
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    folder = (entry / "cwd").readlink()
                except OSError:  # ended, or not readable
                    continue
                if folder.is_relative_to(self._runs) and folder != self._runs:
                    job = folder.relative_to(self._runs).parts[0]
                    if alive(int(entry.name)):
                        pids[job].append(int(entry.name))
        return pids

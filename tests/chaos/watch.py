"""Observer of each job's running trainers. It is independent of the service."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from types import TracebackType

from ..end_to_end.service import alive

LOOK_SECONDS = 0.05


class Watcher(threading.Thread):
    """Thread that watches every process working in a run directory below one of `runs`."""

    def __init__(self, runs: list[Path]) -> None:
        super().__init__(name="watcher", daemon=True)
        self._runs, self._over = [folder.resolve() for folder in runs], threading.Event()
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
                for runs in self._runs:
                    if folder.is_relative_to(runs) and folder != runs and alive(int(entry.name)):
                        pids[folder.relative_to(runs).parts[0]].append(int(entry.name))
        return pids

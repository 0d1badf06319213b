"""Check that the store has the files that a worker's report names.

The check has a time limit, because a hanging store must not delay lease renewals.
"""

from __future__ import annotations

import threading
import time

from tunesmith_server.core.planes import THREADS, Plane
from tunesmith_server.core.storage import Storage, StorageUnavailable
from tunesmith_server.services.leasing.received import ReceivedReport, check_files, names_files

SECONDS = 3.0
"""Maximum seconds that a report waits for the check of its files. The worker waits for the reply to
a report for only a quarter of its lease."""
MAX_RUNNING = THREADS[Plane.WORKERS]
"""Maximum number of checks at the same time.

This number is reached only if the store hangs. While MAX_RUNNING checks are running, further
reports fail immediately.
"""
_KNOWN_SECONDS = 60.0
"""Seconds for which an answer of the store stays valid. If the check of many files takes longer
than SECONDS, the worker repeats the report. The next check then uses the answers of the first
check.
"""


class FileChecks:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._running = threading.BoundedSemaphore(MAX_RUNNING)
        self._known: dict[str, tuple[int, float]] = {}
        """Size of each file that the store has, and the time of the store's answer
        (time.monotonic), oldest first."""

    def check(self, report: ReceivedReport) -> ReceivedReport:
        """Check the files of a report with `check_files`.

        Raises StorageUnavailable if the store does not answer in time.
        """
        if not names_files(report):
            return report
        if not self._running.acquire(blocking=False):
            raise StorageUnavailable("the store has not answered earlier requests yet")
        result: list[ReceivedReport | Exception] = []

        def run() -> None:
            try:
                result.append(check_files(self._size, report))
            except Exception as error:
                result.append(error)
            finally:
                self._running.release()

        # A daemon thread: a hanging store must not delay the exit of the process.
        thread = threading.Thread(target=run, name="file-check", daemon=True)
        thread.start()
        thread.join(SECONDS)
        if not result:
            raise StorageUnavailable(f"the store has not answered within {SECONDS:.0f} s")
        if isinstance(result[0], Exception):
            raise result[0]
        return result[0]

    def _size(self, sha256: str) -> int | None:
        now = time.monotonic()
        for name, (_, at) in list(self._known.items()):
            if at > now - _KNOWN_SECONDS:
                break
            self._known.pop(name, None)
        if known := self._known.get(sha256):
            return known[0]
        size = self._storage.size(sha256)
        if size is not None:
            self._known[sha256] = (size, now)
        return size

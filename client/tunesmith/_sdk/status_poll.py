"""Thread that fetches a job every few seconds, because events do not have the current phase and the
position in the queue."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from tunesmith._http.errors import TunesmithError

from .job import Job

POLL_SECONDS = 2.0


class StatusPoll:
    """Context manager that calls `show` with the newest state of the job until the block ends."""

    def __init__(self, fetch: Callable[[], Job], show: Callable[[Job], None]) -> None:
        self._fetch, self._show = fetch, show
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="status-poll", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            try:
                job = self._fetch()
            except (TunesmithError, RuntimeError):
                continue  # the event reader reports a lost connection
            if not self._ended.is_set():
                self._show(job)

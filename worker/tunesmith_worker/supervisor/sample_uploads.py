"""A step's samples on their way to storage, compressed, one file at a time and in order.

Knows nothing of what is in them. Samples are not worth a job: what cannot be stored is warned of.
"""

from __future__ import annotations

import gzip
import logging
import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tunesmith_schema import EventKind, RunEvent, StoredFile
from tunesmith_worker.rundir.paths import RunDirectory

from .event_reader import EventFeed, give_up_samples, needs_upload
from .server_api import ServerRefused, ServerUnreachable

log = logging.getLogger(__name__)

_LEVEL = 6
"""Of gzip: on texts about 4x smaller, 30 MB a second."""


class SampleUploads:
    """A thread of its own: a large checkpoint that is being sent holds up no sample."""

    def __init__(
        self, run: RunDirectory, feed: EventFeed, store: Callable[[Path], list[StoredFile]]
    ) -> None:
        """`store` sends a folder's files."""
        self._run, self._feed, self._store = run, feed, store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._sending: deque[tuple[RunEvent, Future[list[StoredFile]]]] = deque()
        self._last_seq = 0

    def look(self) -> None:
        """Fill in what has been stored since, and send what is new."""
        for event in self._feed.waiting(EventKind.SAMPLES):
            if event.source_seq > self._last_seq:
                self._last_seq = event.source_seq
                transfer = self._thread.submit(self._sent, str(event.data["file"]))
                self._sending.append((event, transfer))
        while self._sending and self._sending[0][1].done():
            self._fill_in(*self._sending.popleft())

    def close(self) -> None:
        """Nothing more is sent."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _sent(self, file: str) -> list[StoredFile]:
        path = self._run.root / file
        folder = path.with_name(f".{path.name}.upload.part")
        try:
            folder.mkdir(exist_ok=True)
            # mtime: the same samples have the same hash.
            packed = gzip.compress(path.read_bytes(), _LEVEL, mtime=0)
            (folder / f"{path.name}.gz").write_bytes(packed)
            stored = self._store(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        path.unlink(missing_ok=True)
        return stored

    def _fill_in(self, event: RunEvent, transfer: Future[list[StoredFile]]) -> None:
        try:
            files = transfer.result()
        except (ServerUnreachable, ServerRefused, OSError) as error:
            log.warning("samples not stored: %s", error)
            if needs_upload(event):
                give_up_samples(event, f"they could not be stored: {error}")
            return
        if needs_upload(event):
            event.files = files

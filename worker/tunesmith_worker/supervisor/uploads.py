"""Resume points on their way to storage, one at a time, while training and its events go on.

One that a newer one overtakes before its turn is not sent, unless the recipe wants it kept.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema import EventKind, RunEvent, StoredFile
from tunesmith_schema.retention import keeps_step
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.resume_point import MANIFEST, Manifest

from .event_reader import EventReader, drop_samples, needs_upload
from .server_api import ServerRefused, ServerUnreachable

log = logging.getLogger(__name__)

_LEVEL = 6
"""Of gzip: on texts about 4x smaller, 30 MB a second."""


class ResumePointUploads:
    def __init__(
        self,
        run: RunDirectory,
        feed: EventReader,
        store: Callable[[Path], list[StoredFile]],
        keep_every: int | None = None,
    ) -> None:
        """`store` sends a folder's files."""
        self._keep_every = keep_every
        self._run, self._feed, self._store = run, feed, store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resume-points")
        self._closed = False
        self._event: RunEvent | None = None
        self._upload: Future[list[StoredFile]]

    @property
    def busy(self) -> bool:
        return self._event is not None

    def look(self) -> None:
        """Tell what has been stored since, and begin with the newest that waits."""
        if self._event is not None and self._upload.done():
            event, self._event = self._event, None
            self._tell(event)
        waiting = self._feed.resume_points
        if self._event is None and waiting and not self._closed:
            self._event = waiting.pop()
            waiting[:] = [one for one in waiting if self._stays(one)]
            self._upload = self._thread.submit(self._sent, str(self._event.data["directory"]))

    def _stays(self, event: RunEvent) -> bool:
        step = event.data.get("step")
        return isinstance(step, int) and keeps_step(step, self._keep_every)

    def close(self) -> None:
        """Nothing more is sent: the next transfer that fails is the last."""
        self._closed, self._event = True, None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _sent(self, directory: str) -> list[StoredFile]:
        folder = self._run.root / directory
        # The trainer removes old ones: these names keep the content until it is sent.
        kept = self._run.root / f".{folder.name}.upload.part"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        try:
            for file in folder.iterdir():
                os.link(file, kept / file.name)
            manifest = Manifest.model_validate_json((kept / MANIFEST).read_bytes())
            if gone := manifest.files.keys() - {file.name for file in kept.iterdir()}:
                raise FileNotFoundError(f"{directory}: {sorted(gone)}")
            return self._store(kept)
        finally:
            shutil.rmtree(kept, ignore_errors=True)

    def _tell(self, event: RunEvent) -> None:
        try:
            event.files = self._upload.result()
        except FileNotFoundError:  # the trainer has removed it: there are newer ones
            return
        except (ServerUnreachable, ServerRefused, OSError, ValidationError) as error:
            # It is on this host still, and the next one may get through.
            log.warning("resume point not stored: %s", error)
            event.kind, event.level = EventKind.MESSAGE, "warn"
            event.message = f"{event.message}, but it could not be stored: {error}"[:4000]
        self._feed.add(event)


class SampleUploads:
    """A thread of its own: a large checkpoint that is being sent holds up no sample."""

    def __init__(
        self, run: RunDirectory, feed: EventReader, store: Callable[[Path], list[StoredFile]]
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
                drop_samples(event, f"they could not be stored: {error}")
            return
        if needs_upload(event):
            event.files = files

"""Upload a job's files, with retries.

During training, one thread uploads resume points and another thread uploads samples."""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pydantic import ValidationError

from tunesmith_schema import Claim, EventKind, RunEvent, StoredFile
from tunesmith_schema.documents import read_file
from tunesmith_schema.retention import keeps_step
from tunesmith_worker.rundir.errors import error_text
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.rundir.resume_point import MANIFEST, Manifest

from .event_reader import EventReader, drop_samples, needs_upload
from .server_api import ServerApi, ServerFault, ServerRefused, ServerUnreachable

log = logging.getLogger(__name__)

_GZIP_LEVEL = 6
"""gzip level, which makes texts about 4 times smaller and compresses 30 MB/s."""

MAX_FAULTS = 6
"""A transfer fails after this number of consecutive 5xx or damaged answers."""
FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 1.0, 30.0


class Transfers:
    """Transfers of one claimed job. Several threads may call the methods."""

    def __init__(self, api: ServerApi, claim: Claim) -> None:
        self._api, self._claim = api, claim
        self._closed = False

    def close(self) -> None:
        """Stop the retries of transfers."""
        self._closed = True

    def store(self, folder: Path) -> list[StoredFile]:
        """Upload the files of a folder."""
        stored: list[StoredFile] = []
        for path in sorted(folder.iterdir()):
            self.retry(lambda p=path: stored.append(self._put(p)))  # type: ignore[misc]  # the default binds the loop's value
        return stored

    def _put(self, path: Path) -> StoredFile:
        return self._api.put_blob(self._claim.job_id, self._claim.fence, path)

    def retry(self, transfer: Callable[[], None]) -> None:
        """Repeat a transfer with growing delays until it succeeds.

        While the server is unreachable, the number of retries is unlimited. After MAX_FAULTS faulty
        answers in a row, the error is raised."""
        faults, delay = 0, FIRST_DELAY_SECONDS
        while True:
            try:
                return transfer()
            except ServerUnreachable as error:
                faults = faults + 1 if isinstance(error, ServerFault) else 0
                if self._closed or faults == MAX_FAULTS:
                    raise
                log.warning("transfer for %s delayed: %s", self._claim.job_id, error)
                time.sleep(delay)
                delay = min(MAX_DELAY_SECONDS, delay * 2)


class ResumePointUploads:
    """Uploads one resume point at a time, newest first.

    Older resume points are skipped unless `keep_every` selects them."""

    def __init__(
        self,
        run: RunDirectory,
        reader: EventReader,
        store: Callable[[Path], list[StoredFile]],
        keep_every: int | None = None,
    ) -> None:
        """`store` uploads the files of a folder."""
        self._keep_every = keep_every
        self._run, self._reader, self._store = run, reader, store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="resume-points")
        self._closed = False
        self._event: RunEvent | None = None
        self._upload: Future[list[StoredFile]]

    @property
    def busy(self) -> bool:
        return self._event is not None

    def update(self) -> None:
        """Report a finished upload, then upload the newest waiting resume point."""
        if self._event is not None and self._upload.done():
            event, self._event = self._event, None
            self._finish(event)
        waiting = self._reader.resume_points
        if self._event is None and waiting and not self._closed:
            self._event = waiting.pop()
            waiting[:] = [event for event in waiting if self._is_kept(event)]
            self._upload = self._thread.submit(self._send, str(self._event.data["directory"]))

    def _is_kept(self, event: RunEvent) -> bool:
        step = event.data.get("step")
        return isinstance(step, int) and keeps_step(step, self._keep_every)

    def close(self) -> None:
        """Start no more uploads, and no retry of the current upload."""
        self._closed, self._event = True, None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, directory: str) -> list[StoredFile]:
        folder = self._run.root / directory
        # The trainer may remove old resume points. Hard links keep their files until the upload
        # ends.
        kept = self._run.root / f".{folder.name}.upload.part"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        try:
            for file in folder.iterdir():
                os.link(file, kept / file.name)
            manifest = read_file(Manifest, (kept / MANIFEST).read_bytes())
            if missing := manifest.files.keys() - {file.name for file in kept.iterdir()}:
                raise FileNotFoundError(f"{directory}: {sorted(missing)}")
            return self._store(kept)
        finally:
            shutil.rmtree(kept, ignore_errors=True)

    def _finish(self, event: RunEvent) -> None:
        try:
            event.files = self._upload.result()
        except FileNotFoundError:  # the trainer removed the point; a newer one exists
            return
        except (ServerUnreachable, ServerRefused, OSError, ValidationError) as error:
            # The run continues: the resume point is still on this host, and the next upload may
            # succeed.
            log.warning("resume point not stored: %s", error)
            event.kind, event.level = EventKind.MESSAGE, "warn"
            event.message = f"{event.message}, but it was not stored: {error_text(error)}"[:4000]
        self._reader.add(event)


class SampleUploads:
    """Uploads samples compressed and in order. A failure only causes a warning."""

    def __init__(
        self, run: RunDirectory, reader: EventReader, store: Callable[[Path], list[StoredFile]]
    ) -> None:
        """`store` uploads the files of a folder."""
        self._run, self._reader, self._store = run, reader, store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="samples")
        self._sending: deque[tuple[RunEvent, Future[list[StoredFile]]]] = deque()
        self._stored: deque[RunEvent] = deque()
        """Events whose files are stored, but which the server may not have accepted yet."""
        self._last_seq = 0

    def update(self) -> None:
        """Add the stored files to the events of finished uploads, and start new uploads."""
        self._remove_accepted()
        for event in self._reader.pending_uploads(EventKind.SAMPLES):
            if event.source_seq > self._last_seq:
                self._last_seq = event.source_seq
                transfer = self._thread.submit(self._send, str(event.data["file"]))
                self._sending.append((event, transfer))
        while self._sending and self._sending[0][1].done():
            self._fill_in(*self._sending.popleft())

    def close(self) -> None:
        """Start no more uploads."""
        self._remove_accepted()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _send(self, file: str) -> list[StoredFile]:
        path = self._run.root / file
        folder = path.with_name(f".{path.name}.upload.part")
        try:
            folder.mkdir(exist_ok=True)
            # mtime=0 gives equal samples the same hash.
            packed = gzip.compress(path.read_bytes(), _GZIP_LEVEL, mtime=0)
            (folder / f"{path.name}.gz").write_bytes(packed)
            stored = self._store(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return stored

    def _remove_accepted(self) -> None:
        """Remove samples if the server has verified their files and accepted their event."""
        while self._stored and self._stored[0].source_seq <= self._reader.confirmed_seq:
            event = self._stored.popleft()
            (self._run.root / str(event.data["file"])).unlink(missing_ok=True)

    def _fill_in(self, event: RunEvent, transfer: Future[list[StoredFile]]) -> None:
        try:
            files = transfer.result()
        except (ServerUnreachable, ServerRefused, OSError) as error:
            log.warning("samples not stored: %s", error)
            if needs_upload(event):
                drop_samples(event, f"not stored: {error_text(error)}")
            return
        if needs_upload(event):
            event.files = files
            self._stored.append(event)

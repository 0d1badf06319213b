"""`client.files`: data sets on the server."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import InvalidArgumentError, WaitTimeoutError
from tunesmith._http.pages import Page, first_page
from tunesmith._transfer.download import fetch
from tunesmith._transfer.source import FileSource, opened
from tunesmith_schema import FileDeleted, FileObject

from .uploads import Uploads

Order = Literal["asc", "desc"]

_PARTS_ABOVE = 64 * 1024**2
"""Larger files travel in parts."""
_PART_SIZE = 16 * 1024**2
"""What is lost at most when the connection breaks."""
_MIME_TYPE = "application/octet-stream"
_FIRST_POLL = 0.25
_SLOWEST_POLL = 5.0


class Files:
    def __init__(self, http: Http, uploads: Uploads) -> None:
        self._http = http
        self._uploads = uploads

    def create(
        self, *, file: FileSource, purpose: str = "fine-tune", progress: bool = False
    ) -> FileObject:
        """Uploads a path, a `(name, bytes)` pair or a file open in binary mode, streamed.

        More than 64 MiB travel in parts. A path whose upload was interrupted is taken up where it
        broke off, as long as the file is the same and the hour of the upload is not over.
        `progress` shows a bar. A stream that cannot seek is not sent again once a part of it has
        left.
        """
        purposes = [str(known) for known in wire.FilePurpose]
        if purpose not in purposes:
            raise InvalidArgumentError(
                f"purpose {purpose!r} is not one of {', '.join(purposes)}",
                hint="a data set has the purpose 'fine-tune'",
            )
        with opened(file) as source:
            size = source.size()
            if progress and size is not None:
                from tunesmith._transfer.upload_bar import UploadBar  # rich takes a while to import

                bar = UploadBar(source.filename, size)
            else:
                bar = None
            tell = bar.show if bar else None
            with bar or nullcontext():
                if size is not None and size > _PARTS_ABOVE:
                    return self._uploads.send_file(
                        source, purpose=purpose, part_size=_PART_SIZE, tell=tell
                    )
                return self._http.post(
                    FileObject,
                    "files",
                    data={"purpose": purpose},
                    files={"file": (source.filename, source.told(tell), _MIME_TYPE)},
                    can_repeat=source.can_repeat,
                )

    def list(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        order: Order | None = None,
        purpose: str | None = None,
    ) -> Page[FileObject]:
        def ask(cursor: str | None) -> wire.Page[FileObject]:
            params = {"limit": limit, "after": cursor, "order": order, "purpose": purpose}
            return self._http.get(wire.Page[FileObject], "files", params)

        return first_page(ask, after)

    def retrieve(self, file_id: str) -> FileObject:
        return self._http.get(FileObject, path_of("files", file_id))

    def content(self, file_id: str) -> bytes:
        """The whole content in memory; `download` writes it to a file instead."""
        return self._http.send("GET", path_of("files", file_id, "content")).content

    def download(self, file_id: str, path: str | os.PathLike[str]) -> Path:
        """Writes the content to `path`, which appears only when complete and verified."""
        target = Path(path)
        file = self.retrieve(file_id)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            fetch(
                self._http,
                path_of("files", file_id, "content"),
                size=file.bytes,
                sha256=file.sha256,
                to=partial,
            )
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    def delete(self, file_id: str) -> FileDeleted:
        return self._http.delete(FileDeleted, path_of("files", file_id))

    def wait_for_processing(self, file_id: str, *, timeout: float = 1800) -> FileObject:
        """The file once its `status` is `processed` or `error` (`status_details` says why)."""
        deadline = self._http.now() + timeout
        pause = _FIRST_POLL
        while True:
            file = self.retrieve(file_id)
            if file.status != "uploaded":
                return file
            if self._http.now() + pause > deadline:
                raise WaitTimeoutError(
                    f"{file_id} was not validated within {timeout:g} s",
                    hint="validation is a worker's task: is one running (tunesmith worker)?",
                )
            self._http.sleep(pause)
            pause = min(_SLOWEST_POLL, 2 * pause)

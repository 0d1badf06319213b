"""`client.files`: data sets and other files on the server."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Literal, get_args

from pydantic import PrivateAttr

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import InvalidArgumentError, WaitTimeoutError
from tunesmith._http.pages import Page, first_page
from tunesmith._transfer.download import fetch
from tunesmith._transfer.source import FileSource, open_source
from tunesmith_schema import DataRow, FileDeleted, FileObject, FileOverlap, FileStats, FileUse

from .uploads import Uploads

Order = Literal["asc", "desc"]
DataFile = str | os.PathLike[str]
"""A file id, or a local path."""

_FILE_ID = re.compile(r"file-[A-Za-z0-9_-]+")

_PARTS_ABOVE = 64 * 1024**2
"""Size in bytes above which a file is uploaded in parts."""
_PART_SIZE = 16 * 1024**2
"""Size of one part in bytes; a broken connection loses at most one part."""
_MIME_TYPE = "application/octet-stream"
_FIRST_POLL = 0.25
_SLOWEST_POLL = 5.0


class File(FileObject):
    """A file on the server."""

    _reused: bool = PrivateAttr(default=False)

    @property
    def reused(self) -> bool:
        """True if `client.files.create` found the file on the server and uploaded nothing."""
        return self._reused


class Files:
    """Files on the server."""

    def __init__(self, http: Http, uploads: Uploads) -> None:
        self._http = http
        self._uploads = uploads

    def create(
        self, *, file: FileSource, purpose: str = "fine-tune", progress: bool = False
    ) -> File:
        """Upload a path, a `(name, bytes)` pair or a file open in binary mode.

        If the server already has the same content for the same purpose, the existing file is
        returned and `reused` is true. A file that failed validation or has an expiry is not reused.

        The content is streamed; files above 64 MiB are sent in parts. A repeated call for a path
        resumes an upload that was interrupted less than an hour ago. A stream that cannot seek is
        always uploaded. If its upload fails, the stream is not sent again. `progress` shows a bar.
        """
        purposes = [str(known) for known in wire.FilePurpose]
        if purpose not in purposes:
            raise InvalidArgumentError(
                f"purpose {purpose!r} is not one of {', '.join(purposes)}",
                hint="the purpose of a data set is 'fine-tune'",
            )
        with open_source(file) as source:
            sha256 = source.sha256()
            existing = sha256 and self._existing(source.filename, sha256, purpose)
            if existing:
                return existing
            size = source.size()
            if progress and size is not None:
                from tunesmith._transfer.upload_bar import UploadBar  # importing rich is slow

                bar = UploadBar(source.filename, size)
            else:
                bar = None
            report = bar.show if bar else None
            with bar or nullcontext():
                if size is not None and size > _PARTS_ABOVE:
                    uploaded = self._uploads.send_file(
                        source, purpose=purpose, part_size=_PART_SIZE, report=report
                    )
                    fields = uploaded.model_dump(mode="json", exclude_unset=True)
                    return File.model_validate(fields, context={wire.FROM_SERVER: True})
                return self._http.post(
                    File,
                    "files",
                    data={"purpose": purpose},
                    files={"file": (source.filename, source.reporting(report), _MIME_TYPE)},
                    can_repeat=source.can_repeat,
                )

    def _existing(self, filename: str, sha256: str, purpose: str) -> File | None:
        """Return the newest reusable file with this content, or None.

        The file names must have the same suffix, because the suffix selects the parser (JSONL, CSV,
        ...). This method compares `sha256` again, because an older server ignores the filter
        `sha256`.
        """
        params: dict[str, str | int | None] = {"sha256": sha256, "purpose": purpose}
        for file in self._http.get(wire.Page[File], "files", params | {"limit": 100}).data:
            same = (
                file.sha256 == sha256
                and file.purpose == purpose
                and Path(file.filename).suffix.lower() == Path(filename).suffix.lower()
            )
            if same and _is_reusable(file):
                file._reused = True
                return file
        return None

    def list(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        order: Order | None = None,
        purpose: str | None = None,
        sha256: str | None = None,
        q: str | None = None,
        include: Literal["num_uses"] | None = None,
    ) -> Page[File]:
        """List files, newest first. `purpose` and `sha256` select files by purpose and content; `q`
        selects files by a part of the name or the id. `include="num_uses"` counts the jobs and
        evaluations that use each file."""

        def fetch(cursor: str | None) -> wire.Page[File]:
            params: dict[str, str | int | None] = {"limit": limit, "after": cursor}
            params |= {"order": order, "purpose": purpose, "sha256": sha256}
            params |= {"q": q, "include": include}
            return self._http.get(wire.Page[File], "files", params)

        return first_page(fetch, after)

    def retrieve(self, file_id: str) -> File:
        return self._http.get(File, path_of("files", file_id))

    def content(self, file_id: str) -> bytes:
        """Return the whole content as bytes. For large files, use `download`."""
        return self._http.send("GET", path_of("files", file_id, "content")).content

    def download(self, file_id: str, path: str | os.PathLike[str]) -> Path:
        """Download the content to `path`. The file appears only after it is complete and
        verified."""
        target = Path(path)
        file = self.retrieve(file_id)
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            fetch(
                self._http,
                path_of("files", file_id, "content"),
                name=file.filename,
                size=file.bytes,
                sha256=file.sha256,
                to=partial,
            )
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
        return target

    def rows(
        self,
        file_id: str,
        *,
        offset: int | None = None,
        q: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page[DataRow]:
        """List the rows of a JSONL file. `offset` is the number of lines to skip; `q` selects rows
        that contain a text. A page has at most 100 rows; iterating over a page also fetches the
        following pages. A page may be empty although `has_more` is true, because one request reads
        a limited number of bytes."""
        path = path_of("files", file_id, "rows")

        def fetch(cursor: str | None) -> wire.Page[DataRow]:
            params = {"offset": offset, "q": q, "after": cursor, "limit": limit}
            return self._http.get(wire.Page[DataRow], path, params)

        return first_page(fetch, after)

    def uses(
        self,
        file_id: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        order: Order | None = None,
    ) -> Page[FileUse]:
        """List the jobs and evaluations that use a file, newest first."""
        path = path_of("files", file_id, "uses")

        def fetch(cursor: str | None) -> wire.Page[FileUse]:
            params = {"after": cursor, "limit": limit, "order": order}
            return self._http.get(wire.Page[FileUse], path, params)

        return first_page(fetch, after)

    def stats(self, file_id: str) -> FileStats:
        """Return statistics of a data set: the lengths of its rows, and the repeated rows."""
        return self._http.get(FileStats, path_of("files", file_id, "stats"))

    def overlap(self, file_id: str, other_id: str) -> FileOverlap:
        """Return the rows of a data set that are also in another data set."""
        return self._http.get(FileOverlap, path_of("files", file_id, "overlap"), {"with": other_id})

    def delete(self, file_id: str) -> FileDeleted:
        return self._http.delete(FileDeleted, path_of("files", file_id))

    def id_of(self, argument: str, file: DataFile) -> str:
        """Return the id of a file on the server; a local file is uploaded first. Raises
        InvalidArgumentError if `file` is neither a file id nor a local file. `argument` is the
        argument's name in the error message."""
        if isinstance(file, str) and _FILE_ID.fullmatch(file):
            return file
        path = Path(file)
        if not path.is_file():
            raise InvalidArgumentError(
                f"{argument} {os.fspath(file)!r} is neither a file id (file-...) nor a local file",
                hint=f"the current directory is {Path.cwd()}",
            )
        return self.create(file=path).id

    def wait_for_processing(self, file_id: str, *, timeout: float = 1800) -> File:
        """Wait until the server has validated the file, and return the file.

        The returned file's `status` is `processed` or `error`; for `error`, `status_details` has
        the reason.
        """
        deadline = self._http.now() + timeout
        pause = _FIRST_POLL
        while True:
            file = self.retrieve(file_id)
            if file.status != "uploaded":
                return file
            if self._http.now() + pause > deadline:
                raise WaitTimeoutError(
                    f"{file_id} was not validated within {timeout:g} s",
                    hint="a worker validates files: check that one is running (tunesmith worker)",
                )
            self._http.sleep(pause)
            pause = min(_SLOWEST_POLL, 2 * pause)


def _is_reusable(file: File) -> bool:
    """Return True if the file has no expiry, has not failed validation, and was validated for every
    training method. Older servers validated files for fewer methods."""
    if file.status == "error" or file.expires_at is not None:
        return False
    if file.validation is None:
        return True
    return {*file.validation.usable_for, *file.validation.refused} >= {*get_args(wire.MethodName)}

"""`client.uploads`: uploads in parts, with the methods of the openai client."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any

from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import InvalidArgumentError, UploadError
from tunesmith._transfer.parts import send_in_parts
from tunesmith._transfer.source import Report, Slice, Source, open_source
from tunesmith_schema import FileObject, Upload, UploadPart

_COMPLETE_TIMEOUT = 600.0
"""Timeout in seconds for the completion of an upload. The server answers only after it has copied
the file."""
_PART_SIZE = 64 * 1024**2


class Uploads:
    """Uploads of large files. An upload expires one hour after its creation."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.parts = Parts(http)

    def create(
        self,
        *,
        bytes: int,
        filename: str,
        mime_type: str,
        purpose: str,
        expires_after: Mapping[str, Any] | None = None,  # Any: JSON
    ) -> Upload:
        """Start an upload, which accepts parts for one hour."""
        body = {"bytes": bytes, "filename": filename, "mime_type": mime_type, "purpose": purpose}
        if expires_after is not None:
            body["expires_after"] = dict(expires_after)
        return self._http.post(Upload, "uploads", json=body)

    def retrieve(self, upload_id: str) -> Upload:
        """Fetch the upload with its received `parts`."""
        return self._http.get(Upload, path_of("uploads", upload_id))

    def complete(
        self, upload_id: str, *, part_ids: Sequence[str], md5: str | None = None
    ) -> Upload:
        """Create the file from the parts in the given order. Repeating the call is safe."""
        body = {"part_ids": [*part_ids]} | ({"md5": md5} if md5 is not None else {})
        return self._http.post(
            Upload,
            path_of("uploads", upload_id, "complete"),
            json=body,
            read_timeout=max(self._http.timeout, _COMPLETE_TIMEOUT),
        )

    def cancel(self, upload_id: str) -> Upload:
        return self._http.post(Upload, path_of("uploads", upload_id, "cancel"))

    def upload_file_chunked(
        self,
        *,
        file: str | os.PathLike[str] | builtins.bytes,
        mime_type: str,
        purpose: str,
        filename: str | None = None,
        bytes: int | None = None,
        part_size: int | None = None,
        md5: str | None = None,
    ) -> Upload:
        """Upload a file in parts: create an upload, send all parts, complete it. A later call for
        the same path resumes an interrupted upload."""
        if isinstance(file, builtins.bytes):
            if filename is None:
                raise InvalidArgumentError("bytes need a file name", hint="pass filename=")
            opened = open_source((filename, file))
        else:
            opened = open_source(file)
        with opened as source:
            size = source.size()
            if bytes is not None and bytes != size:
                raise InvalidArgumentError(f"bytes is {bytes}, but the file has {size} bytes")
            return send_in_parts(
                self,
                source,
                filename=filename or source.filename,
                mime_type=mime_type,
                purpose=purpose,
                part_size=part_size or _PART_SIZE,
                md5=md5,
                server=self._http.base_url,
            )

    def send_file(
        self, source: Source, *, purpose: str, part_size: int, report: Report | None
    ) -> FileObject:
        """Upload a large file for `client.files.create`."""
        upload = send_in_parts(
            self,
            source,
            filename=source.filename,
            mime_type="application/octet-stream",
            purpose=purpose,
            part_size=part_size,
            report=report,
            server=self._http.base_url,
        )
        if upload.file is None:
            raise UploadError(f"the file that upload {upload.id} created was deleted at once")
        return upload.file


class Parts:
    """`client.uploads.parts`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def create(self, upload_id: str, *, data: bytes | IO[bytes] | Slice) -> UploadPart:
        """Send one part of at most 64 MiB."""
        return self._http.post(
            UploadPart,
            path_of("uploads", upload_id, "parts"),
            files={"data": ("part", data, "application/octet-stream")},
        )

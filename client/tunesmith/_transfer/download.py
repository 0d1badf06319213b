"""One file, fetched to disk: taken up with Range where it broke, checked by size and hash."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import httpx

from tunesmith._http.backoff import backoff
from tunesmith._http.connection import Http, connection_error
from tunesmith._http.errors import DownloadError


class _Transfer:
    """The part of one file that has arrived."""

    def __init__(self, out: BinaryIO, size: int) -> None:
        self._out = out
        self._size = size
        self.restart()

    def restart(self) -> None:
        self._out.seek(0)
        self._out.truncate()
        self._digest = hashlib.sha256()
        self.done = 0

    def add(self, chunk: bytes) -> None:
        self.done += len(chunk)
        if self.done > self._size:
            raise DownloadError(f"the server sent more than the {self._size} bytes it announced")
        self._digest.update(chunk)
        self._out.write(chunk)

    def complete(self) -> bool:
        return self.done == self._size

    def sha256(self) -> str:
        return self._digest.hexdigest()


def fetch(http: Http, path: str, *, size: int, sha256: str | None, to: Path) -> None:
    """Writes and fsyncs `to`. Gives up after `max_retries` breaks without a byte between them."""
    with to.open("wb") as out:
        transfer = _Transfer(out, size)
        breaks = 0
        while not transfer.complete():
            before = transfer.done
            broken = _go_on(http, path, transfer)
            if transfer.complete():
                break
            breaks = 0 if transfer.done > before else breaks + 1
            if breaks > http.max_retries:
                raise DownloadError(
                    f"{path} broke off after {transfer.done} of {size} bytes", hint="try again"
                ) from (broken and connection_error(broken))
            http.sleep(backoff(breaks))
        if sha256 is not None and transfer.sha256() != sha256:
            raise DownloadError(
                f"{path} has sha256 {transfer.sha256()}, and should have {sha256}",
                hint="nothing was kept; if it happens again, the copy on the server is damaged",
            )
        out.flush()
        os.fsync(out.fileno())


def _go_on(http: Http, path: str, transfer: _Transfer) -> httpx.RequestError | None:
    """Reads until the end, or until the connection breaks: that error is returned."""
    # Compressed, the bytes on the wire would not be those that Range counts.
    headers = {"Accept-Encoding": "identity"}
    if transfer.done:
        headers["Range"] = f"bytes={transfer.done}-"
    response = http.send("GET", path, headers=headers, stream=True)
    try:
        if transfer.done and not _continues(response, transfer.done):
            transfer.restart()
        for chunk in response.iter_bytes():
            transfer.add(chunk)
    except httpx.RequestError as error:
        return error
    finally:
        response.close()
    return None


def _continues(response: httpx.Response, offset: int) -> bool:
    """Whether the server understood Range, which it may ignore."""
    begins = response.headers.get("content-range", "").startswith(f"bytes {offset}-")
    return response.status_code == 206 and begins


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

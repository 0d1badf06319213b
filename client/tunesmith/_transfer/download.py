"""Download of one file. After a broken connection, the download is resumed with Range. At the end,
size and sha256 are verified."""

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
    """The bytes of one file that have arrived so far."""

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


def fetch(http: Http, path: str, *, name: str, size: int, sha256: str | None, to: Path) -> None:
    """Download a file to the path `to`, and fsync the file. Raise DownloadError if the connection
    breaks more than `max_retries` times without progress.

    `name` is the file's name in error messages.
    """
    with to.open("wb") as out:
        transfer = _Transfer(out, size)
        breaks = 0
        while not transfer.complete():
            before = transfer.done
            error = _receive(http, path, transfer)
            if transfer.complete():
                break
            breaks = 0 if transfer.done > before else breaks + 1
            if breaks > http.max_retries:
                raise DownloadError(
                    f"the download of {name} broke off after {transfer.done} of {size} bytes",
                    hint="try again",
                ) from (error and connection_error(error))
            http.sleep(backoff(breaks))
        if sha256 is not None and transfer.sha256() != sha256:
            raise DownloadError(
                f"{name} has sha256 {transfer.sha256()}, expected {sha256}",
                hint="download it again; if that fails too, the server's copy is damaged",
            )
        out.flush()
        os.fsync(out.fileno())


def _receive(http: Http, path: str, transfer: _Transfer) -> httpx.RequestError | None:
    # Without compression, the positions in the Range header are positions in the file.
    headers = {"Accept-Encoding": "identity"}
    if transfer.done:
        headers["Range"] = f"bytes={transfer.done}-"
    response = http.send("GET", path, headers=headers, stream=True)
    try:
        if transfer.done and not _starts_at(response, transfer.done):
            transfer.restart()
        for chunk in response.iter_bytes():
            transfer.add(chunk)
    except httpx.RequestError as error:
        return error
    finally:
        response.close()
    return None


def _starts_at(response: httpx.Response, offset: int) -> bool:
    """Return True if the server applied the Range header; a server may ignore the header."""
    content_range = response.headers.get("content-range", "")
    return response.status_code == 206 and content_range.startswith(f"bytes {offset}-")


def file_sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

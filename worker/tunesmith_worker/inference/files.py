"""Files of adapters and tuned models, stored under their hashes and kept across restarts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from .errors import ApiError, invalid

_HASH = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")

_FRESH_SECONDS = 600.0

Kind = Literal["base", "adapter", "full"]


@dataclass(frozen=True)
class StoredFile:
    name: str
    sha256: str


@dataclass(frozen=True)
class Registration:
    """A model that requests may name."""

    id: str
    base: str
    kind: Kind
    files: tuple[StoredFile, ...]

    @classmethod
    def read(cls, body: Any) -> Registration:  # Any: JSON value
        """Raises ApiError for a malformed request."""
        if not isinstance(body, dict):
            raise invalid("id", "the request must be a JSON object")
        for name in ("id", "base"):
            if not isinstance(body.get(name), str) or not body[name]:
                raise invalid(name, f"{name} must be a string")
        if body.get("kind") not in ("base", "adapter", "full"):
            raise invalid("kind", "kind must be 'base', 'adapter' or 'full'")
        files = body.get("files") or []
        if not isinstance(files, list):
            raise invalid("files", "files must be a list")
        return cls(body["id"], body["base"], body["kind"], tuple(map(_stored_file, files)))


def _stored_file(value: Any) -> StoredFile:
    if not isinstance(value, dict):
        raise invalid("files", "files must be a list of objects with name and sha256")
    return StoredFile(check_name(value.get("name")), check_hash(value.get("sha256")))


def check_name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise invalid("name", f"not a file name: {value!r}")
    return value


def check_hash(value: Any) -> str:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise invalid("sha256", f"not a SHA-256 in lower-case hexadecimal: {value!r}")
    return value


class FileStore:
    """Storage of model files: the folder `files`, in which each file is named after its hash, and a
    folder of links to these files for each registered model."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        """`most_bytes`: maximum total size of the files."""
        self._files, self._models = folder / "files", folder / "models"
        self._most_bytes = most_bytes
        for path in (self._files, self._models):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = (folder / "lock").open("w", encoding="utf-8")
        with suppress(OSError):  # another process uses this folder
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._remove_leftovers()

    def close(self) -> None:
        self._lock.close()

    def _remove_leftovers(self) -> None:
        for folder in self._models.iterdir():
            shutil.rmtree(folder, ignore_errors=True)
        for part in self._files.glob("*.part"):
            part.unlink(missing_ok=True)

    async def put(self, chunks: AsyncIterator[bytes], sha256: str) -> None:
        """Store a file. Raises ApiError 422 if the content has another hash."""
        digest = hashlib.sha256()
        handle, name = tempfile.mkstemp(dir=self._files, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                async for chunk in chunks:
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise ApiError(
                    422,
                    f"the file's SHA-256 is {digest.hexdigest()}, not {sha256}: send it again",
                    code="upload_mismatch",
                )
            os.replace(name, self._files / sha256)
        finally:
            Path(name).unlink(missing_ok=True)

    def missing(self, files: Sequence[StoredFile]) -> list[str]:
        return [file.name for file in files if not (self._files / file.sha256).is_file()]

    def link(self, registration: Registration) -> None:
        """Fill the model's folder with links to the model's files."""
        folder = self.folder(registration)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        for file in registration.files:
            os.link(self._files / file.sha256, folder / file.name)
            os.utime(self._files / file.sha256)

    def used(self, registration: Registration) -> None:
        """Record that a model is loaded now."""
        for file in registration.files:
            with suppress(OSError):
                os.utime(self._files / file.sha256)

    def bound(self, registered: Sequence[Registration]) -> list[Registration]:
        """Delete files until their total size is within the limit; return the models that lost
        files.

        The files that were unused for the longest time are deleted first. Files that were stored in
        the last 10 minutes stay, because their model may not be registered yet.
        """
        found = [(path, path.stat()) for path in self._files.iterdir()]
        too_much = sum(status.st_size for _, status in found) - self._most_bytes
        latest = time.time() - _FRESH_SECONDS
        gone = set()
        for path, status in sorted(found, key=lambda one: one[1].st_mtime):
            if too_much <= 0 or status.st_mtime > latest:
                break
            path.unlink(missing_ok=True)
            gone.add(path.name)
            too_much -= status.st_size
        lost = [one for one in registered if any(file.sha256 in gone for file in one.files)]
        for registration in lost:
            shutil.rmtree(self.folder(registration), ignore_errors=True)
        return lost

    def folder(self, registration: Registration) -> Path:
        """Return the model's folder, whose name depends on the model's base and files."""
        names = "".join(f"{file.name}\n{file.sha256}\n" for file in registration.files)
        digest = hashlib.sha256(f"{registration.base}\n{names}".encode()).hexdigest()
        return self._models / f"{quote(registration.id, safe='')[:150]}-{digest[:16]}"

    def unlink(self, registration: Registration) -> None:
        """Remove a model's folder, and its files if no other model has them."""
        shutil.rmtree(self.folder(registration), ignore_errors=True)
        for file in registration.files:
            path = self._files / file.sha256
            if path.is_file() and path.stat().st_nlink == 1:
                path.unlink()

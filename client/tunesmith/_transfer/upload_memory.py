"""Which upload of a file was begun and not ended: one small JSON file each, in the user's cache.

It holds an upload's id and when it expires: no key, no content. A memory that cannot be read or
written costs the resumption and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from tunesmith._http.settings import cache_folder

_ENDS = 64 * 1024


class UploadMemory:
    """Of one file, as it now is, on its way to one server."""

    def __init__(self, file: Path, *about: str | int) -> None:
        """`about` is what must also be the same: the server, the purpose, the size of a part."""
        self._path = cache_folder() / "uploads" / f"{_fingerprint(file, about)}.json"

    def recall(self) -> str | None:
        """Id of the upload that was begun, unless its time is over."""
        try:
            known = json.loads(self._path.read_bytes())
            upload_id, expires_at = str(known["upload_id"]), float(known["expires_at"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return upload_id if expires_at > time.time() else None

    def remember(self, upload_id: str, expires_at: int) -> None:
        text = json.dumps({"upload_id": upload_id, "expires_at": expires_at})
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _forget_old(self._path.parent)
            fresh = self._path.with_suffix(f".{os.getpid()}")
            fresh.write_text(text)
            fresh.replace(self._path)

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _fingerprint(file: Path, about: tuple[str | int, ...]) -> str:
    """Of where the file is and what can be told of its content without reading all of it. The
    content itself is compared part by part, with what the server has."""
    told = file.stat()
    ends = hashlib.sha256()
    with file.open("rb") as stream:
        ends.update(stream.read(_ENDS))
        stream.seek(max(0, told.st_size - _ENDS))
        ends.update(stream.read(_ENDS))
    known = [str(file.resolve()), told.st_size, told.st_mtime_ns, ends.hexdigest(), *about]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]


def _forget_old(folder: Path) -> None:
    """What is older than a day has expired, whatever it was."""
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - 86_400:
            path.unlink(missing_ok=True)

"""Records of interrupted uploads: one small JSON file per upload, in the user's cache folder.

A record holds the upload's id and expiry, but no key and no content. Without a usable record, the
next upload starts from the beginning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from tunesmith._http.settings import cache_folder

_EDGE_BYTES = 64 * 1024
"""Number of bytes that the fingerprint reads at the start of a file, and again at the file's
end."""


class UploadRecord:
    """Record of one upload. If the file changes, the record is no longer found."""

    def __init__(self, file: Path, *context: str | int) -> None:
        """Set the path of the record. An upload with a different `context` (server, purpose, part
        size) has a different record."""
        self._path = cache_folder() / "uploads" / f"{_fingerprint(file, context)}.json"

    def load(self) -> str | None:
        """Return the id of the interrupted upload, or None if the record is missing or expired."""
        try:
            record = json.loads(self._path.read_bytes())
            upload_id, expires_at = str(record["upload_id"]), float(record["expires_at"])
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return upload_id if expires_at > time.time() else None

    def save(self, upload_id: str, expires_at: int) -> None:
        text = json.dumps({"upload_id": upload_id, "expires_at": expires_at})
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _delete_old(self._path.parent)
            partial = self._path.with_suffix(f".{os.getpid()}")
            partial.write_text(text)
            partial.replace(self._path)

    def delete(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _fingerprint(file: Path, context: tuple[str | int, ...]) -> str:
    """Return a hash of `context` (server, purpose, part size) and of the file's path, size,
    modification time, first bytes and last bytes. The middle of the file is not read, because the
    upload compares each part with the server's copy."""
    status = file.stat()
    edges = hashlib.sha256()
    with file.open("rb") as stream:
        edges.update(stream.read(_EDGE_BYTES))
        stream.seek(max(0, status.st_size - _EDGE_BYTES))
        edges.update(stream.read(_EDGE_BYTES))
    values = [str(file.resolve()), status.st_size, status.st_mtime_ns, edges.hexdigest(), *context]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:32]


def _delete_old(folder: Path) -> None:
    """Delete records older than a day, because uploads expire after an hour."""
    for path in folder.iterdir():
        if path.stat().st_mtime < time.time() - 86_400:
            path.unlink(missing_ok=True)

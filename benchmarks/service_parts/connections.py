"""Minimal HTTP/1.1 client on asyncio with keep-alive connections, for load generators.

A full HTTP client would use more CPU time than the measured server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Target:
    """Address and key of the API."""

    host: str
    port: int
    key: str

    def head(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        lines += [f"authorization: Bearer {self.key}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Connection:
    """Connection that sends one request at a time or receives one stream."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._target.host, self._target.port)
        return self._streams

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send a request. Return status and body. Raises KeyError if the response has no
        content-length."""
        reader, writer = await self.open()
        content = b"" if body is None else json.dumps(body).encode()
        about = {"content-type": "application/json", "content-length": str(len(content))}
        writer.write(self._target.head(method, path, about | (headers or {})) + content)
        status, answered = await _read_head(reader)
        return status, await reader.readexactly(int(answered["content-length"]))

    async def events(self, path: str, last_event_id: int | None) -> AsyncIterator[tuple[int, Any]]:
        """Yield number and JSON of each server-sent event. The event `done` has event number 0."""
        reader, writer = await self.open()
        resume = {} if last_event_id is None else {"last-event-id": str(last_event_id)}
        writer.write(self._target.head("GET", path, {"accept": "text/event-stream", **resume}))
        status, _ = await _read_head(reader)
        if status != 200:
            raise ConnectionError(f"GET {path} returned status {status}")
        number, data = 0, b""
        while line := await reader.readline():
            # Lines with chunk sizes match none of the fields below.
            if line.startswith(b"id:"):
                number = int(line[3:])
            elif line.startswith(b"data:"):
                data = line[5:]
            elif line == b"\n" and data:
                yield number, json.loads(data)
                number, data = 0, b""

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.split(":", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), {name.lower(): value.strip() for name, value in pairs}

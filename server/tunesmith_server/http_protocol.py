"""uvicorn's HTTP protocol with limits on header bytes, on time, and on the transfer rate.

This protocol uses httptools, because h11 needs twice the CPU time per request. uvicorn itself
limits headers only with h11. Neither httptools nor h11 limits the time of headers and bodies, or
the time in which a client must read a response.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from tunesmith_schema import ErrorBody, ErrorCode, ErrorEnvelope

from .connections import ConnectionGuard

HEADER_BYTES = 64 * 1024
"""Maximum total size in bytes of the request line and the headers. Chunk headers and trailers have
the same limit."""
HEADER_SECONDS = 10.0
"""Maximum seconds until all headers of a request have arrived."""
RATE_SECONDS = 20.0
"""Period in which a client must send or read `RATE_BYTES`, or the remaining bytes if these are
fewer."""
RATE_BYTES = 16 * 1024
KEEP_ALIVE_SECONDS = 10
"""Time after which an idle connection is closed. Python's HTTP clients close idle connections
earlier, after 5 s, so they do not send a request on a connection that the server closes."""


class _CountingTransport:
    """Transport that counts the bytes written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.written = 0

    def write(self, data: bytes) -> None:
        self.written += len(data)
        self._transport.write(data)

    def unsent(self) -> int:
        return self._transport.get_write_buffer_size()

    def __getattr__(self, name: str) -> Any:  # Any: the transport's own
        return getattr(self._transport, name)


@dataclass
class _Progress:
    since: float | None = None
    bytes: int = 0

    def is_too_slow(self, now: float, bytes_so_far: int) -> bool:
        if self.since is None or bytes_so_far - self.bytes >= RATE_BYTES:
            self.since, self.bytes = now, bytes_so_far
        return now - self.since > RATE_SECONDS

    def stop(self) -> None:
        self.since = None


class GuardedProtocol(HttpToolsProtocol):
    """Protocol of one connection. `guard` calls the method `check` once per second."""

    def __init__(self, *args: Any, guard: ConnectionGuard, **options: Any) -> None:
        # Any: uvicorn's own arguments
        super().__init__(*args, **options)
        self._guard = guard
        self._headers_since: float | None = None
        self._quiet_bytes = 0
        """Bytes received since the parser last reported headers, a piece of a body, or the end of a
        request."""
        self._received = 0
        self._sending, self._reading = _Progress(), _Progress()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        counting = _CountingTransport(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, counting))
        self._headers_since = time.monotonic()
        if not self._guard.add(self):
            self._refuse(
                503, "too many connections from your address",
                "close idle connections and event streams, or ask the operator to raise "
                "TUNESMITH_MAX_CONNECTIONS_PER_ADDRESS",
            )  # fmt: skip

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # after a refusal, until the buffer is sent
        self._received += len(data)
        self._quiet_bytes += len(data)
        if self._headers_since is None and not self._is_busy():
            self._headers_since = time.monotonic()
        super().data_received(data)
        if self._quiet_bytes > HEADER_BYTES and not self.transport.is_closing():
            self._refuse_headers()

    def send_400_response(self, msg: str) -> None:
        if self._quiet_bytes > HEADER_BYTES:
            self._refuse_headers()
        else:
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        if self._quiet_bytes > HEADER_BYTES and self._header_bytes() > HEADER_BYTES:
            raise ValueError("headers too large")  # ends in send_400_response
        self._quiet_bytes, self._headers_since = 0, None
        super().on_headers_complete()
        self._guard.set_waiting(self, False)

    def on_body(self, body: bytes) -> None:
        self._quiet_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._quiet_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_busy():
            self._guard.set_waiting(self, True)

    def check(self, now: float) -> None:
        """Close the connection if its client is too slow."""
        transport = cast(_CountingTransport, self.transport)
        if unsent := transport.unsent():
            if self._reading.is_too_slow(now, transport.written - unsent):
                self.transport.abort()
                return
        else:
            self._reading.stop()
        if self._headers_since is not None and now - self._headers_since > HEADER_SECONDS:
            self._refuse(
                408, f"the headers of the request did not arrive within {HEADER_SECONDS:.0f} s",
                "check the network, and repeat the request",
            )  # fmt: skip
        elif self._waits_for_body():
            if self._sending.is_too_slow(now, self._received):
                self.transport.abort()
        else:
            self._sending.stop()

    def _is_busy(self) -> bool:
        return bool(self.pipeline) or (self.cycle is not None and not self.cycle.response_complete)

    def _waits_for_body(self) -> bool:
        if not self._is_busy() or self.flow.read_paused:
            return False
        return self.cycle.more_body and not self.cycle.waiting_for_100_continue

    def _header_bytes(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _refuse_headers(self) -> None:
        self._refuse(
            431, f"the request line and headers have more than {HEADER_BYTES:,} bytes",
            "send a shorter URL, and fewer or shorter headers",
        )  # fmt: skip

    def _refuse(self, status: int, message: str, hint: str) -> None:
        self._headers_since = None
        if self._is_busy():
            self.transport.abort()
            return
        codes = {431: ErrorCode.REQUEST_TOO_LARGE, 503: ErrorCode.UNAVAILABLE}
        code = codes.get(status, ErrorCode.INVALID_REQUEST)
        error = ErrorBody(
            message=message, type="invalid_request_error", code=code, hint=hint,
            retryable=status != 431,
        )  # fmt: skip
        body = json.dumps(ErrorEnvelope(error=error).model_dump(mode="json")).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(body) + body)
        self.transport.close()

"""Bodies that do not arrive: they cost little memory, and clients that leave are no errors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from .actors import Server
from .live import listening

CLIENTS, BYTES, MIB = 60, 900_000, 2**20
PART = b'--xyz\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
KINDS = {
    "json": ("/v1/fine_tuning/jobs", "application/json"),
    "json that mentions a form": ("/v1/fine_tuning/jobs", "application/json; a=multipart/"),
    "a form for a route without forms": ("/v1/completions", "multipart/form-data; boundary=x"),
    "a form": ("/v1/uploads/upload-1/parts", "multipart/form-data; boundary=xyz"),
}


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with listening(server.app) as url:
        yield url


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname or "", address.port or 0))
    connection.settimeout(10)
    return connection


def head(server: Server, path: str, kind: str, size: int = BYTES) -> bytes:
    key = server.user.headers["authorization"]
    lines = [f"POST {path} HTTP/1.1", "host: a", f"authorization: {key}"]
    lines += [f"content-type: {kind}", f"content-length: {size}"]
    return "\r\n".join([*lines, "", ""]).encode()


def memory() -> int:
    """Resident memory in bytes, without what earlier tests freed."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    match = re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


@pytest.mark.parametrize("kind", KINDS)
def test_unfinished_bodies_of_many_clients_are_not_in_memory(
    server: Server, url: str, kind: str
) -> None:
    content = (PART if kind == "a form" else b"") + b" " * BYTES
    request = head(server, *KINDS[kind]) + content[: BYTES - 10]
    left = {}
    before = memory()
    with contextlib.ExitStack() as stack:
        for _ in range(CLIENTS):
            client = stack.enter_context(connect(url))
            client.setblocking(False)
            left[client] = memoryview(request)
        deadline = time.monotonic() + 3
        while any(left.values()) and time.monotonic() < deadline:
            for client, rest in left.items():
                with contextlib.suppress(BlockingIOError):  # the server does not read on
                    left[client] = rest[client.send(rest) :]
            time.sleep(0.01)
        time.sleep(0.3)
        grown = memory() - before
    assert grown < CLIENTS * BYTES * 2 // 3, f"{grown / MIB:.0f} MiB"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/uploads/upload-1/parts"])
def test_a_file_that_is_no_form_is_refused_before_it_is_read(
    server: Server, url: str, path: str
) -> None:
    with connect(url) as client:
        client.sendall(head(server, path, "application/octet-stream", 90_000))
        reply = client.recv(4096)
    assert reply.startswith(b"HTTP/1.1 400")
    assert b"multipart/form-data" in reply


def test_a_client_that_leaves_in_its_body_is_no_error(
    server: Server, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with connect(url) as client:
        client.sendall(head(server, "/v1/fine_tuning/jobs", "application/json") + b"{")
    deadline = time.monotonic() + 5
    while "/v1/fine_tuning/jobs 499" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "/v1/fine_tuning/jobs 499" in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

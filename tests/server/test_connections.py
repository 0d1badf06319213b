"""Limits on connections: header bytes, idle sockets, slow clients, connections of one address."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import resource
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy import update

from tunesmith_server import http_protocol
from tunesmith_server.connections import ConnectionGuard, raise_file_limit
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import FileRow

from .actors import Server
from .live import listening

REQUEST = b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
MIB = 2**20


@pytest.fixture
def settings(settings: Settings) -> Settings:
    settings.max_connections_per_address = 20
    return settings


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with listening(server.app) as url:
        yield url


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 1.0)
    monkeypatch.setattr(http_protocol, "RATE_SECONDS", 1.0)


def connect(url: str, **options: int) -> socket.socket:
    address = urlsplit(url)
    connection = socket.socket()
    for name, value in options.items():
        connection.setsockopt(socket.SOL_SOCKET, getattr(socket, name), value)
    connection.settimeout(10)
    connection.connect((address.hostname, address.port))
    return connection


def healthy(url: str) -> bool:
    with httpx2.Client(timeout=5) as http:
        return http.get(f"{url}/healthz").status_code == 200


def send_until_closed(connection: socket.socket, piece: bytes, limit: int) -> tuple[int, bytes]:
    """Send `piece` up to `limit` bytes. Return the bytes sent, and the answer."""
    sent = 0
    with contextlib.suppress(OSError):
        while sent < limit:
            sent += connection.send(piece)
    answer = b""
    with contextlib.suppress(OSError):
        while piece := connection.recv(65536):
            answer += piece
    return sent, answer


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        pytest.param(REQUEST, b"x-a: " + b"a" * 1000 + b"\r\n", id="many headers"),
        pytest.param(REQUEST + b"x-a: ", b"a" * 1000, id="one header"),
        pytest.param(REQUEST, b"a" * 1000, id="a header's name"),
        pytest.param(b"GET /", b"a" * 1000, id="the URL"),
        pytest.param(
            REQUEST + b"transfer-encoding: chunked\r\n\r\n0\r\n",
            b"x-a: " + b"a" * 1000 + b"\r\n",
            id="trailers",
        ),
        pytest.param(
            REQUEST + b"transfer-encoding: chunked\r\n\r\n1;x=", b"a" * 1000, id="chunk extension"
        ),
    ],
)
def test_endless_headers_end_early(url: str, start: bytes, piece: bytes) -> None:
    with connect(url) as connection:
        connection.sendall(start)
        sent, _ = send_until_closed(connection, piece * 16, 64 * MIB)
    assert sent < 16 * MIB, "the rest is in the sockets' buffers"
    assert healthy(url)


def test_headers_beyond_the_limit_are_refused_by_name(url: str) -> None:
    with connect(url) as connection:
        connection.sendall(REQUEST + b"x-a: " + b"a" * http_protocol.HEADER_BYTES + b"\r\n\r\n")
        head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 "), head
    error = json.loads(body)["error"]
    assert "65,536 bytes" in error["message"]
    assert not error["retryable"]


def test_large_headers_below_the_limit_pass(url: str) -> None:
    with httpx2.Client(timeout=5) as http:
        for _ in range(3):
            reply = http.get(f"{url}/healthz", headers={"x-a": "a" * 60_000})
            assert reply.status_code == 200


@pytest.mark.parametrize("start", [b"", REQUEST], ids=["silent", "half a request"])
def test_a_connection_without_a_request_is_closed(url: str, hurry: None, start: bytes) -> None:
    with connect(url) as connection:
        connection.sendall(start)
        began = time.monotonic()
        answer = connection.recv(65536)
        assert time.monotonic() - began < 4
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408 ")


def test_a_second_request_that_never_ends_is_closed(url: str, hurry: None) -> None:
    with connect(url) as connection:
        connection.sendall(REQUEST + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
        connection.sendall(REQUEST)
        began = time.monotonic()
        while connection.recv(65536):
            pass
        assert time.monotonic() - began < 4


def test_a_body_that_never_ends_is_closed(server: Server, url: str, hurry: None) -> None:
    key = server.user.headers["authorization"].encode()
    with connect(url) as connection:
        connection.sendall(
            b"POST /v1/fine_tuning/jobs HTTP/1.1\r\nhost: x\r\nauthorization: " + key
            + b"\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        )  # fmt: skip
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            connection.recv(65536)
        assert time.monotonic() - began < 5


def test_a_client_that_does_not_read_is_closed(server: Server, url: str, hurry: None) -> None:
    content = b"a" * (32 * MIB)
    sha256 = hashlib.sha256(content).hexdigest()
    server.storage.put(io.BytesIO(content), sha256)
    file_id = server.upload()
    with server.database.write.begin() as session:
        session.execute(update(FileRow).values(sha256=sha256, bytes=len(content)))
    key = server.user.headers["authorization"].encode()
    with connect(url, SO_RCVBUF=4096) as connection:
        connection.sendall(
            b"GET /v1/files/" + file_id.encode() + b"/content HTTP/1.1\r\nhost: x\r\n"
            b"authorization: " + key + b"\r\n\r\n"
        )
        time.sleep(4)
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(MIB):
                received += len(piece)
    assert received < len(content), "the whole file was still delivered"


def test_a_client_that_reads_slowly_gets_everything(server: Server, url: str, hurry: None) -> None:
    content = b"a" * 90_000
    with httpx2.Client(timeout=10, headers=server.user.headers) as http:
        reply = http.post(
            f"{url}/v1/files", files={"file": ("a.txt", content)},
            data={"purpose": "user_data"},
        )  # fmt: skip
        file_id = reply.json()["id"]
        with http.stream("GET", f"{url}/v1/files/{file_id}/content") as download:
            pieces = []
            for piece in download.iter_raw(chunk_size=30_000):
                pieces.append(piece)
                time.sleep(0.6)
    assert b"".join(pieces) == content


def test_idle_sockets_keep_no_client_out(url: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connect(url))
        began = time.monotonic()
        assert healthy(url)
        assert time.monotonic() - began < 2


def test_busy_connections_of_one_address_have_a_limit(server: Server, url: str) -> None:
    job_id = server.create_job(server.good_file())
    path = f"{url}/v1/fine_tuning/jobs/{job_id}/events?stream=true"
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            http = stack.enter_context(httpx2.Client(timeout=5, headers=server.user.headers))
            reply = stack.enter_context(http.stream("GET", path))
            assert reply.status_code == 200
        with connect(url) as one_more:
            one_more.sendall(REQUEST + b"\r\n")
            assert one_more.recv(65536).startswith(b"HTTP/1.1 503 ")
    # The API notices the closed streams one after another. Until then, it refuses new connections.
    deadline = time.monotonic() + 10
    while not healthy(url):
        assert time.monotonic() < deadline, "closed connections still count"
        time.sleep(0.05)


class _Client:
    def __init__(self, address: str) -> None:
        self.client = (address, 1)
        self.closed = False
        self.transport = self

    def close(self) -> None:
        self.closed = True


def test_the_limit_counts_addresses_and_ipv6_networks_but_no_declared_proxy() -> None:
    def open_from(guard: ConnectionGuard, addresses: list[str]) -> int:
        """Number of connections that stay open."""
        clients = [_Client(address) for address in addresses]
        for client in clients:
            if guard.add(client):  # type: ignore[arg-type]  # all that the guard uses
                guard.set_waiting(client, False)  # type: ignore[arg-type]
            else:
                client.close()
        return sum(not client.closed for client in clients)

    def guard(trusted_proxies: str = "", total: int = 100) -> ConnectionGuard:
        return ConnectionGuard(per_address=3, total=total, trusted_proxies=trusted_proxies)

    assert open_from(guard(), ["10.0.0.1"] * 5) == 3
    assert open_from(guard(), ["::ffff:10.0.0.1"] * 3 + ["10.0.0.1"] * 2) == 3
    assert open_from(guard(), ["10.0.0.1", "10.0.0.2"] * 3) == 6
    assert open_from(guard(), [f"2001:db8::{n}" for n in range(9)]) == 3
    assert open_from(guard("10.0.0.0/24"), ["10.0.0.1"] * 9) == 9
    assert open_from(guard("*"), ["10.0.0.1"] * 9) == 9
    assert open_from(guard("*", total=5), ["10.0.0.1"] * 9) == 5


def test_the_limit_of_open_files_is_raised() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
        assert raise_file_limit() == min(hard, 65_536)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

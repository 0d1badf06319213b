"""Embedded broker: a server on a private socket, or polled files."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tunesmith_schema.queue import celery_broker
from tunesmith_server.broker import embedded_broker, find_server


def test_without_a_server_files_are_the_broker(tmp_path: Path) -> None:
    broker = embedded_broker(tmp_path, None)
    assert (broker.url, broker.command) == (f"filesystem://{tmp_path / 'broker'}", None)
    assert (tmp_path / "broker").stat().st_mode & 0o777 == 0o700
    settings = celery_broker(broker.url)
    options = settings["broker_transport_options"]
    assert settings["broker_url"] == "filesystem://"
    assert options["data_folder_in"] == options["data_folder_out"] == str(tmp_path / "broker")
    assert options["polling_interval"] == 0.1
    assert Path(options["control_folder"]).is_dir()


def test_a_server_listens_on_a_socket_in_the_data_directory(tmp_path: Path) -> None:
    broker = embedded_broker(tmp_path, "valkey-server")
    assert broker.socket == tmp_path / "broker" / "broker.sock"
    assert broker.url == f"redis+socket://{broker.socket}"
    assert broker.command
    assert broker.command[broker.command.index("--port") + 1] == "0", "no TCP port"


def test_a_path_too_long_for_a_socket_gets_another_place(tmp_path: Path) -> None:
    data_dir = tmp_path / ("x" * 60) / ("y" * 60)
    data_dir.mkdir(parents=True)
    broker = embedded_broker(data_dir, "valkey-server")
    assert broker.socket
    assert len(str(broker.socket).encode()) <= 100
    assert broker.socket.parent.stat().st_mode & 0o777 == 0o700
    broker.socket.parent.rmdir()


def test_a_socket_left_behind_is_removed(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "broker.sock").touch()
    broker = embedded_broker(tmp_path, "valkey-server")
    assert broker.socket
    assert not broker.socket.exists()


def _is_owners_alone(socket: Path) -> bool:
    return socket.exists() and socket.stat().st_mode & 0o777 == 0o700


def test_the_command_starts_a_server(tmp_path: Path) -> None:
    server = find_server()
    if server is None:
        pytest.skip("no valkey-server or redis-server here")
    broker = embedded_broker(tmp_path, server)
    assert broker.command
    assert broker.socket
    process = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        # The server binds the socket first and restricts its mode afterwards.
        while not _is_owners_alone(broker.socket):
            assert process.poll() is None, "the server refused our options"
            assert time.monotonic() < deadline, "no socket of mode 0700"
            time.sleep(0.01)
    finally:
        process.terminate()
        process.wait(10)

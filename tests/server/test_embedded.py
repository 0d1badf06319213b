"""`tunesmith serve` before it starts anything: one per data directory, on a port that is free."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tunesmith_server.__main__ import main
from tunesmith_server.embedded import StartError, _admin_key, _lock, serve
from tunesmith_server.settings import Settings

from .actors import FakeWakeUps, serving
from .callers import Caller


def test_a_data_directory_has_one_server(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=0)
    settings.prepare()
    with _lock(settings.data_dir), pytest.raises(StartError, match=r"another .* \(pid \d+\)"):
        serve(settings)
    assert not (settings.data_dir / "tunesmith.db").exists()


def test_a_taken_port_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--data-dir", str(tmp_path), "--port", port]) == 1
    assert "pass another --port" in capsys.readouterr().err
    with _lock(tmp_path):
        """The failed start left no lock behind."""


def test_the_first_start_makes_a_key_that_works(settings: Settings, wake_ups: FakeWakeUps) -> None:
    key_file = settings.data_dir / "api-key"
    settings.data_dir.mkdir(exist_ok=True)
    for _ in range(2):
        _admin_key(settings, key_file)
    assert key_file.stat().st_mode & 0o777 == 0o600
    with serving(settings, wake_ups) as server:
        admin = Caller(server.client, key_file.read_text().strip())
        assert admin.get("/v1/files").status_code == 200

"""Checks of `tunesmith serve` before any start: one per data directory, a free port."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tunesmith_server.__main__ import main
from tunesmith_server.core.settings import Settings
from tunesmith_server.embedded import StartError, _free_port, _lock, _register_admin_key, serve

from ..certificates import issue
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
        """A failed start leaves no lock."""


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("::1", "http://[::1]:8000"),
        ("localhost", "http://localhost:8000"),
    ],
)
def test_the_url_is_one_that_can_be_asked(tmp_path: Path, host: str, url: str) -> None:
    settings = Settings(data_dir=tmp_path, host=host, trusted_proxies="10.0.0.1")
    assert settings.url == url
    secure = settings.model_copy(update={"tls_cert": tmp_path / "cert.pem"})
    assert secure.url == url.replace("http:", "https:")


def test_a_free_port_is_found_on_ipv6_as_well() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:  # a machine without IPv6
        with pytest.raises(StartError, match="cannot listen on ::1:0"):
            _free_port("::1", 0)
    else:
        assert _free_port("::1", 0) > 0


def test_serve_refuses_a_certificate_for_another_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers could not reach such an API, so the start fails."""
    made = issue(tmp_path / "tls", "tune.example")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    where = ["--data-dir", str(tmp_path / "data"), "--host", "localhost.localdomain", "--port", "0"]
    monkeypatch.setattr("tunesmith_server.embedded._free_port", lambda host, port: 8000)
    assert main(["serve", *where]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: clients would refuse TUNESMITH_TLS_CERT {made.cert}: Hostname")
    assert "'localhost.localdomain'" in said
    # `tunesmith api` does not know its public name.
    assert main(["api", *where]) == 1
    assert "TUNESMITH_BROKER_URL" in capsys.readouterr().err
    monkeypatch.setenv("TUNESMITH_BROKER_URL", "memory://")
    assert main(["api", *where]) == 1
    assert "tunesmith migrate" in capsys.readouterr().err


def test_the_first_start_makes_a_key_that_works(settings: Settings, wake_ups: FakeWakeUps) -> None:
    key_file = settings.data_dir / "api-key"
    settings.data_dir.mkdir(mode=0o700, exist_ok=True)
    for _ in range(2):
        _register_admin_key(settings, key_file)
    assert key_file.stat().st_mode & 0o777 == 0o600
    with serving(settings, wake_ups) as server:
        admin = Caller(server.client, key_file.read_text().strip())
        assert admin.get("/v1/files").status_code == 200

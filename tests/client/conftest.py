"""Fixtures: a local server with the CLI, and a fake of /v1/uploads with a client for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tunesmith import Client
from tunesmith._sdk import files
from tunesmith.cli import app

from .fake_uploads import CONTENT, FakeUploads
from .fakes import client_of
from .local_server import LocalServer, serving

Tunesmith = Callable[..., Result]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with serving() as local:
        yield local


@pytest.fixture
def tunesmith(server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tunesmith:
    """Run the CLI in an empty directory, with address and key in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNESMITH_BASE_URL", server.url)
    monkeypatch.setenv("TUNESMITH_API_KEY", "sk-env")
    return lambda *arguments, input=None: CliRunner().invoke(
        app, list(arguments), input=input, catch_exceptions=False
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeUploads:
    monkeypatch.setattr(files, "_PARTS_ABOVE", 200)
    monkeypatch.setattr(files, "_PART_SIZE", 100)
    return FakeUploads()


@pytest.fixture
def client(fake: FakeUploads) -> Client:
    return client_of(fake)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(CONTENT)
    return path

"""Fixtures of the server tests: the whole app over a fresh, migrated database.

Every test that touches the database runs twice, on SQLite and on PostgreSQL (`tests/conftest.py`);
`pytest -k sqlite` or `-k postgresql` runs one half.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tunesmith_schema import JobState
from tunesmith_server import migrate
from tunesmith_server.core.settings import Settings

from ..stacks import S3, PostgreSQL
from .actors import FakeWakeUps, Server, serving

BASE_MODEL = "tiny-llama"
DATABASES = ("sqlite", "postgresql")


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TUNESMITH_")]:
        if not name.startswith("TUNESMITH_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database to copy."""
    file = tmp_path_factory.mktemp("migrated") / "tunesmith.db"
    migrate.upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with the schema and no rows, of either kind."""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        url = postgresql.new_migrated_database()
        yield url
        postgresql.drop(url)
        return
    copy = tmp_path / "data" / "tunesmith.db"
    copy.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(request.getfixturevalue("migrated_file"), copy)
    yield f"sqlite:///{copy}"


@pytest.fixture(params=DATABASES)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with nothing in it, of either kind."""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        url = postgresql.new_database()
        yield url
        postgresql.drop(url)
        return
    yield f"sqlite:///{tmp_path / 'fresh.db'}"


@pytest.fixture
def storage_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where contents go: a local directory, or `parametrize(..., ["s3"], indirect=True)`."""
    if getattr(request, "param", "local") == "local":
        return ""
    s3: S3 = request.getfixturevalue("s3")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.new_url()


@pytest.fixture
def settings(database_url: str, storage_url: str, tmp_path: Path) -> Settings:
    """One base model on the host; the janitor moves only when a test tells it to."""
    folder = tmp_path / "models" / BASE_MODEL
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return Settings(
        data_dir=tmp_path / "data",
        database_url=database_url,
        storage_url=storage_url,
        broker_url="memory://",
        model_dirs=str(tmp_path / "models"),
        janitor_seconds=3600,
        max_file_bytes=100_000,
    )


@pytest.fixture
def wake_ups(monkeypatch: pytest.MonkeyPatch) -> FakeWakeUps:
    """Takes the place of the Celery producer in the app."""
    fake = FakeWakeUps()
    monkeypatch.setattr("tunesmith_server.app.WakeUps", lambda url: fake)
    return fake


@pytest.fixture
def server(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    with serving(settings, wake_ups) as running:
        yield running


@pytest.fixture
def job_in(server: Server) -> Callable[[JobState], str]:
    """Makes a job and brings it to a state; gives its id."""

    def bring(state: JobState) -> str:
        worker = server.worker
        if state is JobState.VALIDATING_FILES:
            return server.create_job(server.upload())
        job_id = server.create_job(server.good_file())
        if state is JobState.QUEUED:
            return job_id
        if state in (JobState.CANCELLED, JobState.PAUSED):
            verb = "cancel" if state is JobState.CANCELLED else "pause"
            server.user.post(f"/v1/fine_tuning/jobs/{job_id}/{verb}")
            return job_id
        claim = worker.claim()
        assert claim["job_id"] == job_id, "only one job may wait at a time here"
        if state is JobState.SUCCEEDED:
            worker.succeed(claim)
        elif state is JobState.FAILED:
            error = {"category": "user", "code": "recipe_invalid", "message": "r"}
            worker.report(claim, outcome={"state": "failed", "error": error})
        elif state is JobState.PAUSING:
            server.user.post(f"/v1/fine_tuning/jobs/{job_id}/pause")
        else:
            assert state is JobState.RUNNING
        return job_id

    return bring

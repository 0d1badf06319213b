"""Fixtures of the server tests: the whole app with a new, migrated database.

Tests with a database run on SQLite and on PostgreSQL: `databases` names the exceptions. `pytest -k
sqlite` and `-k postgresql` select one of them. By default, only the files in `ON_POSTGRESQL` run on
PostgreSQL.
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
from .databases import FIXTURES, ON_POSTGRESQL, on_both, without_repetitions

BASE_MODEL = "tiny-llama"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with a database on both kinds, unless the test or `databases` names one."""
    marks = metafunc.definition.iter_markers("parametrize")
    named = {mark.args[0] for mark in marks}
    in_default_suite = metafunc.module.__name__.rpartition(".")[2] in ON_POSTGRESQL
    postgresql = pytest.param("postgresql", marks=() if in_default_suite else pytest.mark.full)
    file = metafunc.definition.path.relative_to(Path(__file__).parent).as_posix()
    both = on_both(file, metafunc.definition.originalname)
    for name in FIXTURES:
        if name in metafunc.fixturenames and name not in named:
            kinds = ["sqlite", postgresql] if both else ["sqlite"]
            metafunc.parametrize(name, kinds, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = without_repetitions(items)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TUNESMITH_")]:
        if not name.startswith("TUNESMITH_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Migrated SQLite database that tests copy."""
    file = tmp_path_factory.mktemp("migrated") / "tunesmith.db"
    migrate.upgrade(f"sqlite:///{file}")
    return file


@pytest.fixture
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with the schema and no rows."""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        url = postgresql.new_migrated_database()
        yield url
        postgresql.take_back(url)
        return
    copy = tmp_path / "data" / "tunesmith.db"
    copy.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copy(request.getfixturevalue("migrated_file"), copy)
    yield f"sqlite:///{copy}"


@pytest.fixture
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database."""
    if request.param == "postgresql":
        postgresql: PostgreSQL = request.getfixturevalue("postgresql")
        url = postgresql.new_database()
        yield url
        postgresql.drop(url)
        return
    yield f"sqlite:///{tmp_path / 'fresh.db'}"


@pytest.fixture
def storage_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of the storage: a local directory, or S3 by `parametrize(..., ["s3"], indirect=True)`."""
    if getattr(request, "param", "local") == "local":
        return ""
    s3: S3 = request.getfixturevalue("s3")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3.new_url()


@pytest.fixture
def settings(database_url: str, storage_url: str, tmp_path: Path) -> Settings:
    """Settings with one base model on the host. The janitor runs only when a test calls it."""
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
    """Replacement of the app's Celery producer."""
    fake = FakeWakeUps()
    monkeypatch.setattr("tunesmith_server.app.WakeUps", lambda url: fake)
    return fake


@pytest.fixture
def server(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    with serving(settings, wake_ups) as running:
        yield running


@pytest.fixture
def job_in(server: Server) -> Callable[[JobState], str]:
    """Function that creates a job in a state and returns its id."""

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
        assert claim["job_id"] == job_id, "here, only one job may wait at a time"
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

"""The larger installation: PostgreSQL, Redis and S3 under the same service, the same promises."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import openai
import psycopg
import pytest

import tunesmith

from ..stacks import S3, PostgreSQL
from .service import QUICK, Service, alive, until
from .test_durability import assert_complete, goes_on, start_training

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database_url(postgresql: PostgreSQL) -> Iterator[str]:
    """Empty: `serve` brings the schema."""
    url = postgresql.new_database()
    yield url
    postgresql.drop(url)


@pytest.fixture(scope="module")
def larger(
    tmp_path_factory: pytest.TempPathFactory,
    model_dir: Path,
    database_url: str,
    redis_url: str,
    s3: S3,
) -> Iterator[Service]:
    parts = {
        "TUNESMITH_DATABASE_URL": database_url,
        "TUNESMITH_BROKER_URL": redis_url,
        "TUNESMITH_STORAGE_URL": s3.new_url(),
        "TUNESMITH_PRESIGNED_SECONDS": "60",
        "TUNESMITH_MAX_LOSSES": "9",
        "TUNESMITH_WARM_TRAINER": "false",
    }
    folder = tmp_path_factory.mktemp("larger") / "data"
    running = Service(folder, model_dir, **QUICK, **parts, **s3.environment)
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def endless(larger: Service, rows: Path) -> tunesmith.Job:
    """A job that takes the blows of the tests below. The last one ends it."""
    return start_training(larger, rows)


def test_the_openai_client_follows_to_the_store(larger: Service, rows: Path) -> None:
    with openai.OpenAI(base_url=larger.url, api_key=larger.api_key) as client:
        with rows.open("rb") as content:
            file = client.files.create(file=content, purpose="fine-tune")
        assert client.files.content(file.id).content == rows.read_bytes()


def test_a_database_that_hangs_up_on_everybody_costs_no_step(
    endless: tunesmith.Job, postgresql: PostgreSQL, database_url: str
) -> None:
    attempt = endless.refresh().attempt
    assert postgresql.hang_up(database_url) >= 1
    goes_on(endless, attempt)


def test_a_killed_worker_loses_nothing(larger: Service, endless: tunesmith.Job) -> None:
    trainer, attempt = larger.trainers()[0], endless.refresh().attempt
    os.kill(larger.worker_main(), signal.SIGKILL)
    until(lambda: not alive(trainer), 5)
    goes_on(endless, attempt + 1)


def test_the_job_ends_and_its_adapter_comes_from_the_store(
    larger: Service, endless: tunesmith.Job, rows: Path, tmp_path: Path, s3: S3
) -> None:
    """The last one that needs this job."""
    for pid in (larger.worker_main(), larger.trainers()[0]):
        names = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"test-secret" not in names
        assert b"TUNESMITH_DATABASE_URL" not in names
    attempt = endless.refresh().attempt
    endless.stop().wait(timeout=90)
    assert endless.attempt == attempt
    assert_complete(endless, endless.step)
    folder = larger.client().adapters.download(endless.id, tmp_path / "adapter")
    assert (folder / "adapter_model.safetensors").stat().st_size > 0
    assert not (larger.data_dir / "blobs").exists()
    assert not (larger.data_dir / "tunesmith.db").exists()
    assert not (larger.data_dir / "broker").exists()

    url = f"{larger.url}/files/{endless.training_file}/content"
    headers = {"authorization": f"Bearer {larger.api_key}", "range": "bytes=5-9"}
    with httpx.Client(trust_env=False) as http:
        moved = http.get(url, headers=headers)
        assert (moved.status_code, urlsplit(moved.headers["location"]).port) == (
            307,
            urlsplit(s3.endpoint).port,
        )
        part = http.get(url, headers=headers, follow_redirects=True)
    assert (part.status_code, part.content) == (206, rows.read_bytes()[5:10])


def test_a_running_job_is_cancelled(larger: Service, rows: Path, database_url: str) -> None:
    job = start_training(larger, rows)
    job.cancel()
    until(lambda: job.refresh().status == "cancelled", 10)
    assert larger.trainers() == []
    with psycopg.connect(database_url) as connection:
        state = connection.execute("SELECT state FROM jobs WHERE id = %s", [job.id]).fetchone()
    assert state == ("cancelled",)
    with pytest.raises(tunesmith.JobCancelledError):
        job.wait(timeout=5)

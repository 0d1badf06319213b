"""docker/compose.yml as running processes: commands, environments, health checks, and a job."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import tunesmith

from ..end_to_end.service import ENDLESS, write_rows
from ..end_to_end.test_durability import assert_complete, goes_on
from ..end_to_end.test_trip import logits_gap
from ..tiny_model import make_tiny_model
from .compose_file import read_project
from .dockerfile import ROOT
from .host import Container, Host

pytestmark = [pytest.mark.slow, pytest.mark.stacks]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_tiny_model(folder / "tiny")
    return folder


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Host]:
    """Project set up as in docs/how-to/deploy.md, up to `docker compose up`."""
    docker = tmp_path_factory.mktemp("checkout") / "docker"
    shutil.copytree(ROOT / "docker", docker, ignore=shutil.ignore_patterns(".env"))
    path = {"PATH": "/usr/bin:/bin"}
    subprocess.run([docker / "make-env.sh", models], env=path, check=True, capture_output=True)
    subnet = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
    with (docker / ".env").open("a") as env:
        # Set again: on a machine with GPUs make-env.sh adds the GPU file.
        env.write(f"COMPOSE_FILE=compose.yml\nTUNESMITH_SUBNET={subnet}.0/24\n")
    running = Host(read_project(docker), subnet)
    try:
        # The API lists base models by name and never reads their files.
        (running.container("api").mounts["/models"] / "tiny" / "model.safetensors").unlink()
        running.up()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[tunesmith.Client]:
    api = host.container("api")
    made = api.execute(["tunesmith", "keys", "create", "test", "--json"])
    key = json.loads(made.stdout)["key"]
    with tunesmith.Client(base_url=f"http://{api.address}:8000/v1", api_key=key) as opened:
        yield opened


def start_training(client: tunesmith.Client, host: Host, rows: Path) -> tunesmith.Job:
    """A job that has done its first steps, and trains until it is stopped."""
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=ENDLESS)
    host.until(lambda: job.refresh().step >= 3, "the first steps")
    return job


def test_every_health_check_passes_while_its_service_runs(host: Host) -> None:
    checked = [c for c in host.containers.values() if c.service.healthcheck]
    names = {"postgres", "valkey", "api", "train", "light", "inference"}
    assert {c.service.name for c in checked} == names
    for container in checked:
        host.until(container.healthy, f"health of {container.service.name}", 120)


def test_the_inference_service_answers_chat_requests(host: Host, client: tunesmith.Client) -> None:
    host.until(host.container("inference").healthy, "health of inference", 120)
    question = [{"role": "user", "content": "Who are you?"}]
    answer = client.chat.completions.create(model="tiny", messages=question, max_tokens=3)
    assert answer.usage
    assert 1 <= answer.usage.completion_tokens <= 3
    [command] = [process.cmdline() for process in host.container("inference").tree()][:1]
    assert "tunesmith_worker.inference" in command


def test_the_broker_keeps_what_it_is_told_and_asks_for_its_password(host: Host) -> None:
    valkey = host.container("valkey")

    def ask(*words: str) -> str:
        return valkey.execute(["valkey-cli", "-h", "127.0.0.1", *words]).stdout.strip()

    assert ask("config", "get", "appendonly").split() == ["appendonly", "yes"]
    assert ask("config", "get", "maxmemory-policy").split()[-1] == "noeviction"
    log_files = valkey.mounts["/data"].rglob("appendonly*.aof*")  # Redis 6 has no folder for them
    assert list(log_files)
    with socket.create_connection((valkey.address, 6379), 5) as stranger:
        stranger.sendall(b"PING\r\n")
        assert stranger.recv(100).startswith(b"-NOAUTH")


def test_a_job_trains_though_the_api_is_killed_and_nothing_is_shared(
    host: Host, client: tunesmith.Client, models: Path, tmp_path: Path
) -> None:
    job = start_training(client, host, write_rows(tmp_path / "train.jsonl"))
    api, train = host.container("api"), host.container("train")
    assert any("tunesmith_worker.trainer " in " ".join(p.cmdline()) for p in train.tree())
    assert_nothing_is_shared(host, api, train)

    api.kill()
    assert not api.healthy()
    host.until(lambda: api.restarts == 1 and api.healthy(), "the API's second life")
    goes_on(job, 1)
    job.stop().wait(timeout=90)
    assert job.attempt == 1
    assert_complete(job, job.step)
    folder = client.adapters.download(job.id, tmp_path / "adapter")
    assert logits_gap(models / "tiny", folder) <= 1e-5


def uses_of(process: psutil.Process) -> tuple[list[str], str, int] | None:
    """Return a process's files, environment and session; None if the process has ended."""
    try:
        paths = [mapped.path for mapped in process.memory_maps()] + [process.cwd()]
        for link in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                paths.append(os.readlink(link))
        environment = Path(f"/proc/{process.pid}/environ").read_text()
        return paths, environment, os.getsid(process.pid)
    except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
        return None


def assert_nothing_is_shared(host: Host, api: Container, train: Container) -> None:
    """Check that API and worker share no file, session or secret."""
    password = api.environment["TUNESMITH_DATABASE_URL"].split(":")[2].split("@")[0]
    sessions = []
    for one, other in ((api, train), (train, api)):
        found = [uses for process in one.tree() if (uses := uses_of(process))]
        assert found
        sessions.append({session for _, _, session in found})
        for paths, environment, _ in found:
            assert [path for path in paths if path.startswith(str(other.root))] == []
            assert str(other.root) not in environment
            assert one is api or password not in environment
    assert not sessions[0] & sessions[1]
    assert (api.mounts["/var/lib/tunesmith"] / "blobs").is_dir()
    assert not (train.mounts["/var/lib/tunesmith"] / "blobs").exists()


def test_a_worker_told_to_stop_hands_its_job_back_within_the_grace_period(
    host: Host, client: tunesmith.Client, tmp_path: Path
) -> None:
    job = start_training(client, host, write_rows(tmp_path / "train.jsonl"))
    assert host.stop("train"), "it had to be killed, or left a process behind"
    assert job.refresh().state == "queued"
    job.cancel()
    assert not any("stopped reporting" in event.message for event in job.stream())
    host.start("train")
    host.until(host.container("train").healthy, "the worker's health")


def test_everything_stops_in_order_and_leaves_nothing_behind(host: Host) -> None:
    """Must run last, because it stops the service."""
    trees: list[psutil.Process] = [p for c in host.containers.values() for p in c.tree()]
    stopped = host.down()
    assert list(stopped)[-1] in ("postgres", "valkey")
    assert list(stopped).index("train") < list(stopped).index("api") < list(stopped).index("valkey")
    assert all(stopped.values()), stopped
    assert [process for process in trees if process.is_running()] == []

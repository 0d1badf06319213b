"""Compose files: valid, closed by default, without secrets."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tunesmith_server.core.settings import Settings
from tunesmith_worker.inference.settings import InferenceSettings
from tunesmith_worker.supervisor.job_session import REPORT_TIMEOUT_SECONDS
from tunesmith_worker.supervisor.settings import WorkerSettings

from .compose_file import ComposeError, Service, read_env, read_files, read_project
from .dockerfile import ROOT, read_stages

DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*.yml"))
WORKER = {
    "TUNESMITH_SERVER_URL": "https://tune.example.org",
    "TUNESMITH_BROKER_URL": "redis://:secret@10.0.0.5:6379/0",
    "TUNESMITH_WORKER_TOKEN": "t" * 48,
    "TUNESMITH_MODELS": "/srv/models",
    "TUNESMITH_TRAIN_MEMORY": "64g",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy of docker/ with an .env for a host without GPUs."""
    return made_env(tmp_path, gpus=0)


def made_env(folder: Path, *, gpus: int) -> Path:
    docker = folder / "docker"
    docker.mkdir()
    for path in (*FILES, DOCKER / "make-env.sh"):
        (docker / path.name).write_text(path.read_text())
    (docker / "make-env.sh").chmod(0o755)
    (folder / "models").mkdir()
    smi = folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    cards = "\n".join(f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})" for i in range(gpus))
    smi.write_text(f"#!/bin/sh\ncat <<END\n{cards}\nEND\n")
    smi.chmod(0o755)
    done = make_env(docker, folder / "models")
    assert done.returncode == 0, done.stderr
    return docker


def make_env(docker: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [docker / "make-env.sh", *arguments],
        env={"PATH": f"{docker.parent / 'bin'}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_valid_by_the_compose_specification(path: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_nothing_is_published_but_the_api_on_this_host(checkout: Path) -> None:
    services = read_project(checkout)
    expected = {"postgres", "valkey", "migrate", "api", "train", "light", "inference"}
    assert set(services) == expected
    ports = {name: service.ports for name, service in services.items() if service.ports}
    assert ports == {"api": ["127.0.0.1:8000:8000"]}


def test_every_variable_of_env_is_needed_and_none_has_a_default(checkout: Path) -> None:
    variables = read_env(checkout / ".env")
    for name in variables:
        if name.startswith("TUNESMITH_"):
            without = {key: value for key, value in variables.items() if key != name}
            for given in (without, without | {name: ""}):
                with pytest.raises(ComposeError, match=f"required variable {name}"):
                    read_files([checkout / "compose.yml"], given)
    secrets = r"\$\{\w*(?:PASSWORD|TOKEN|KEY)\w*(?!\w*:\?)[^}]*\}"
    assert [re.findall(secrets, path.read_text()) for path in FILES] == [[]] * len(FILES)


def test_make_env_writes_secrets_once_and_for_nobody_else(checkout: Path) -> None:
    env = checkout / ".env"
    assert stat.S_IMODE(env.stat().st_mode) == 0o600
    known = read_env(env)
    drawn = [known[f"TUNESMITH_{name}"] for name in ("DATABASE_PASSWORD", "BROKER_PASSWORD")]
    drawn += [known["TUNESMITH_WORKER_TOKEN"], known["TUNESMITH_INFERENCE_TOKEN"]]
    assert len(set(drawn)) == 4
    assert all(re.fullmatch(r"[0-9a-f]{48}", secret) for secret in drawn)

    again = make_env(checkout, checkout.parent / "models")
    assert (again.returncode, read_env(env)) == (1, known)
    assert "exists" in again.stderr
    env.unlink()
    nowhere = make_env(checkout, checkout / "absent")
    assert nowhere.returncode == 1
    assert "is not a folder" in nowhere.stderr
    assert not env.exists()
    assert "usage" in make_env(checkout).stderr


def test_make_env_takes_a_folder_as_seen_from_where_it_is_called(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / ".env").unlink()
    monkeypatch.chdir(checkout.parent)
    assert make_env(checkout, Path("models")).returncode == 0
    assert read_env(checkout / ".env")["TUNESMITH_MODELS"] == str(checkout.parent / "models")


@pytest.mark.parametrize("gpus", [1, 4, 8, 16])
def test_each_gpu_up_to_eight_has_a_train_worker_of_its_own(tmp_path: Path, gpus: int) -> None:
    services = read_project(made_env(tmp_path, gpus=gpus))
    trains = [service for name, service in services.items() if name.startswith("train")]
    assert [devices(service) for service in trains] == [
        [str(number)] for number in range(min(gpus, 8))
    ]
    for service in trains:
        assert service.target == "worker-cuda"
        assert service.command == ["tunesmith", "worker", "--queue", "train"]
        assert service.environment["TUNESMITH_TRAINER_PYTHON"] == "/opt/tunesmith/bin/python"
        assert service.raw["shm_size"] == "8gb"
        # An index with torch for the CPU must not reach this image.
        assert service.raw["build"]["args"]["TORCH_INDEX"] == ""
        assert set(service.depends_on) & {"api", "train"}  # so it stops before the API


def devices(service: Service) -> list[str]:
    (one,) = service.raw["deploy"]["resources"]["reservations"]["devices"]
    assert (one["driver"], one["capabilities"]) == ("nvidia", ["gpu"])
    ids: list[str] = one["device_ids"]
    return ids


def test_a_further_host_runs_workers_and_knows_no_database() -> None:
    files = [DOCKER / "worker.yml", DOCKER / "compose.gpu.yml"]
    services = read_files(files, WORKER, ["gpus-2"])
    assert set(services) == {"train", "light", "train-1"}
    for service in services.values():
        assert service.ports == []
        assert service.environment["TUNESMITH_SERVER_URL"] == "https://tune.example.org"
        assert not any("DATABASE" in name or "AWS" in name for name in service.environment)
    with pytest.raises(ComposeError, match="TUNESMITH_SERVER_URL"):
        read_files(files, {})


def test_the_broker_is_published_on_the_address_that_is_asked_for(checkout: Path) -> None:
    files = [checkout / "compose.yml", checkout / "compose.hosts.yml"]
    variables = read_env(checkout / ".env")
    with pytest.raises(ComposeError, match="TUNESMITH_BROKER_BIND"):
        read_files(files, variables)
    services = read_files(files, variables | {"TUNESMITH_BROKER_BIND": "10.0.0.5"})
    assert services["valkey"].ports == ["10.0.0.5:6379:6379"]


def test_https_is_the_only_thing_that_the_tls_file_publishes(checkout: Path) -> None:
    files = [checkout / "compose.yml", checkout / "compose.tls.yml"]
    variables = read_env(checkout / ".env")
    with pytest.raises(ComposeError, match="TUNESMITH_DOMAIN"):
        read_files(files, variables)
    services = read_files(files, variables | {"TUNESMITH_DOMAIN": "tune.example.org"})
    assert services["caddy"].ports == ["80:80", "443:443", "443:443/udp"]
    assert services["api"].ports == ["127.0.0.1:8000:8000"]


def test_choices_of_the_operator_reach_the_api_from_env(checkout: Path) -> None:
    chosen = {
        "TUNESMITH_STORAGE_URL": "s3://bucket/prefix",
        "TUNESMITH_MAX_FILE_BYTES": "1073741824",
        "TUNESMITH_PROJECT": "support",
    }
    without = read_env(checkout / ".env")
    given = [
        read_files([checkout / "compose.yml"], variables)["api"].environment
        for variables in (without, without | chosen)
    ]
    assert not chosen.keys() & given[0].keys()
    assert chosen.items() <= given[1].items()


def test_vllm_reads_the_adapters_that_the_api_writes(checkout: Path) -> None:
    files = [checkout / f"compose{part}.yml" for part in ("", ".chat", ".vllm")]
    variables = read_env(checkout / ".env") | {"TUNESMITH_CHAT_GPU": "0"}
    with pytest.raises(ComposeError, match="TUNESMITH_CHAT_MODEL"):
        read_files(files, variables)
    services = read_files(files, variables | {"TUNESMITH_CHAT_MODEL": "my-model"})
    api, inference = services["api"], services["inference"]
    assert inference.command[:4] == [
        *("vllm", "serve", "/models/my-model", "--served-model-name=my-model"),
    ]
    assert api.environment["TUNESMITH_INFERENCE_URL"] == "http://inference:8001"
    assert "--port=8001" in inference.command
    assert inference.environment["VLLM_API_KEY"] == api.environment["TUNESMITH_INFERENCE_TOKEN"]
    folder = api.environment["TUNESMITH_INFERENCE_CACHE"]
    assert f"adapters:{folder}" in api.raw["volumes"]
    assert f"adapters:{folder}:ro" in inference.raw["volumes"]
    assert "/models:ro" in str(inference.raw["volumes"])
    [made] = [v for v in read_stages()["base"].of("RUN") if "install -d" in v]
    assert folder in made.split()  # with the rights of the user
    rank = api.environment["TUNESMITH_INFERENCE_MAX_LORA_RANK"]
    assert f"--max-lora-rank={rank}" in inference.command


def every_service(tmp_path: Path) -> dict[str, Service]:
    docker = made_env(tmp_path, gpus=8)
    files = [
        docker / f"compose{part}.yml" for part in ("", ".gpu", ".hosts", ".tls", ".chat", ".vllm")
    ]
    more = {
        "TUNESMITH_CHAT_MODEL": "my-model",
        "TUNESMITH_BROKER_BIND": "10.0.0.5",
        "TUNESMITH_DOMAIN": "tune.example.org",
        "TUNESMITH_CHAT_GPU": "9",
    }
    return read_files(files, read_env(docker / ".env") | more, ["gpus-8"])


def test_services_restart_and_have_time_to_stop(tmp_path: Path) -> None:
    services = every_service(tmp_path)
    assert services.pop("migrate").restart == "no"
    services.pop("caddy")
    for name, service in services.items():
        assert service.restart == "unless-stopped", name
        assert service.healthcheck is not None, name
        if name.startswith(("train", "light")):
            # Time for the resume point, a report to a hanging API, and Celery's shutdown (3 s).
            release = WorkerSettings.model_fields["release_seconds"].default
            needed = (release if name.startswith("train") else 0) + REPORT_TIMEOUT_SECONDS + 10
            assert service.stop_grace_seconds > needed, name


def test_what_is_set_is_what_the_programs_read(tmp_path: Path) -> None:
    known: dict[str, set[str]] = {
        "server": set(Settings.model_fields),
        "worker-cpu": set(WorkerSettings.model_fields),
        "worker-cuda": set(WorkerSettings.model_fields),
        "inference": set(InferenceSettings.model_fields),
    }
    for service in every_service(tmp_path).values():
        fields: Any = known.get(service.name, known.get(service.target, ()))  # Any: only membership
        given = [name for name in service.environment if name.startswith("TUNESMITH_")]
        if service.target:
            assert service.target in read_stages()
            unknown = [n for n in given if n.removeprefix("TUNESMITH_").lower() not in fields]
            assert unknown == [], service.name
            assert service.raw["cap_drop"] == ["ALL"]
            assert service.raw["security_opt"] == ["no-new-privileges:true"]
        else:
            assert re.search(r":\d+\.\d+(\.\d+)?-\w+$", service.image), service.image
            assert "TUNESMITH_WORKER_TOKEN" not in service.environment


def test_the_api_takes_what_compose_gives_it_and_needs_every_part(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = read_project(checkout)["api"].environment | {"TUNESMITH_DATA_DIR": str(tmp_path)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert Settings().host == "0.0.0.0"
    monkeypatch.delenv("TUNESMITH_TRUSTED_PROXIES")
    with pytest.raises(ValueError, match="open to other machines"):
        Settings()


def test_every_service_has_limits_and_inference_ends_first(tmp_path: Path) -> None:
    services = every_service(tmp_path)
    for name, service in services.items():
        assert service.raw["mem_limit"], name
        assert int(service.raw["pids_limit"]) > 0, name
        assert 0 <= service.raw["oom_score_adj"] <= 1000, name  # rootless Docker allows no less
    order = {name: int(service.raw["oom_score_adj"]) for name, service in services.items()}
    assert order.pop("inference") == 1000
    others = {name: score for name, score in order.items() if not name.startswith("train")}
    assert order["train"] == order["train-7"] == 950
    assert max(others.values()) == others["light"] < 950
    assert order["api"] > order["caddy"] > order["valkey"] > order["postgres"] == 0
    for name in ("train", "light", "inference"):  # swapping would slow the whole host
        assert services[name].raw["memswap_limit"] == services[name].raw["mem_limit"], name


@pytest.mark.parametrize("gpus", [0, 2, 16])
def test_the_trainers_leave_memory_for_the_other_services(tmp_path: Path, gpus: int) -> None:
    services = read_project(made_env(tmp_path, gpus=gpus))
    models = ("train", "inference")
    trains = [service for name, service in services.items() if name.startswith(models)]
    mib = [int(service.raw["mem_limit"].removesuffix("m")) for service in trains]
    found = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    assert found
    total = int(found[1]) // 1024
    assert 0 < sum(mib) <= total - min(total // 2, 12 * 1024)
    fixed = [s for name, s in services.items() if not name.startswith((*models, "migrate"))]
    assert sum(int(s.raw["mem_limit"].removesuffix("g")) for s in fixed) <= 12


def test_no_password_is_on_a_command_line(tmp_path: Path) -> None:
    docker = made_env(tmp_path, gpus=2)
    variables = read_env(docker / ".env")
    secrets = [value for name, value in variables.items() if re.search("PASSWORD|TOKEN", name)]
    assert len(secrets) == 4
    for name, service in read_project(docker).items():
        check = service.healthcheck.command if service.healthcheck else []
        for word in [*service.command, *check]:
            assert not any(secret in word for secret in secrets), name


def test_the_proxy_hides_the_workers_api_unless_hosts_are_declared(tmp_path: Path) -> None:
    """Reads the Caddyfile as Caddy does: variables are replaced, then words are split."""
    docker = made_env(tmp_path, gpus=0)
    files = [docker / "compose.yml", docker / "compose.tls.yml"]
    variables = read_env(docker / ".env") | {"TUNESMITH_DOMAIN": "tune.example.org"}
    hosts = "203.0.113.7 198.51.100.0/24"
    for more, declared in (
        ({}, ["127.0.0.1/32"]),
        ({"TUNESMITH_WORKER_HOSTS": hosts}, hosts.split()),
    ):
        given = read_files(files, variables | more)["caddy"].environment
        text = re.sub(
            r"\{\$(\w+)(?::([^}]*))?\}",
            lambda match: given.get(match[1]) or match[2] or "",  # noqa: B023
            (DOCKER / "Caddyfile").read_text(),
        )
        lines = [line.split() for line in text.splitlines()]
        assert ["path", "/internal", "/internal/*"] in lines
        assert ["not", "remote_ip", *declared] in lines
        assert ["respond", "@strangers", "404"] in lines
        # Caddy runs `respond` before `reverse_proxy`, in whatever order they stand.
        assert lines.index(["@strangers", "{"]) < lines.index(["respond", "@strangers", "404"])


DIGEST = "sha256:" + "5" * 64


def pin_images(docker: Path, answer: str) -> subprocess.CompletedProcess[str]:
    """Run pin-images.sh with a `docker` that answers every question for a digest."""
    (docker / "pin-images.sh").write_text((DOCKER / "pin-images.sh").read_text())
    (docker / "pin-images.sh").chmod(0o755)
    fake = docker.parent / "bin" / "docker"
    fake.write_text(f'#!/bin/sh\necho "$*" >> {docker.parent}/asked\necho "{answer}"\n')
    fake.chmod(0o755)
    return subprocess.run(
        [docker / "pin-images.sh"],
        env={"PATH": f"{fake.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_images_are_pinned_to_the_digests_that_the_registry_names(checkout: Path) -> None:
    before = read_env(checkout / ".env")
    for _ in range(2):  # a second run replaces the first one's digests
        done = pin_images(checkout, DIGEST)
        assert done.returncode == 0, done.stderr
    after = read_env(checkout / ".env")
    images = {name: value for name, value in after.items() if name.endswith("_IMAGE")}
    assert before == {name: value for name, value in after.items() if name not in images}
    assert stat.S_IMODE((checkout / ".env").stat().st_mode) == 0o600
    assert set(images) == {
        f"TUNESMITH_{name}_IMAGE" for name in ("BROKER", "CADDY", "POSTGRES", "PYTHON")
    }
    assert all(value.endswith(f"@{DIGEST}") for value in images.values())
    services = read_project(checkout)
    assert services["postgres"].image == f"postgres:18.1-bookworm@{DIGEST}"
    assert services["api"].raw["build"]["args"]["PYTHON_IMAGE"] == images["TUNESMITH_PYTHON_IMAGE"]
    assert (checkout.parent / "asked").read_text().count("imagetools inspect") == 8


def test_an_unknown_digest_pins_nothing(checkout: Path) -> None:
    before = (checkout / ".env").read_text()
    done = pin_images(checkout, "unauthorized")
    assert done.returncode == 1
    assert "no digest for" in done.stderr
    assert (checkout / ".env").read_text() == before


def test_the_images_of_compose_and_dockerfile_are_the_same() -> None:
    default = {stage.base for stage in read_stages().values()} - set(read_stages())
    text = "".join(path.read_text() for path in FILES)
    assert set(re.findall(r"\{TUNESMITH_PYTHON_IMAGE:-([^}]*)\}", text)) == default

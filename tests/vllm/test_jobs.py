"""Whole reinforcement jobs with vLLM, which is killed in the middle of a rollout.

Runs in the environment of the service; trainers run in the environment of vLLM. Both jobs must
generate the completions of an undisturbed job with the native engine, each once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tunesmith
from tests.end_to_end.service import QUICK, Service, write_rows
from tests.end_to_end.test_reinforcement import in_generation, kill_when
from tests.tiny_model import make_tiny_model

from .serving import ROLLOUTS, VLLMServer, vllm_server
from .test_chat import PYTHON, pytestmark

__all__ = ["pytestmark"]

Sample = tuple[Any, ...]  # Any: fields of a sample
STEPS, GROUP, PROMPTS, LENGTH = 3, 4, 12, 100
"""About one completion of six is shorter than LENGTH. With 12 prompts, some end before the others
in each step, so a rollout can be interrupted in the middle."""
RECIPE: dict[str, Any] = {
    "max_steps": STEPS,
    "save_steps": 1,
    "learning_rate": 1e-3,
    "precision": "fp32",
    "lora": {"r": 4},
    "grpo": {
        "num_generations": GROUP,
        "prompts_per_step": PROMPTS,
        "max_completion_length": LENGTH,
        "num_iterations": 1,
    },
}
GRADER = {"type": "length", "unit": "characters", "target": 100, "limit": 800}
IMPORTANCE = ("importance_ratio", "importance_ratio_max", "importance_masked_share")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("jobs")
    make_tiny_model(folder / "models" / "tiny", hidden_size=128)
    env = QUICK | {"TUNESMITH_TRAINER_PYTHON": PYTHON, "TUNESMITH_WARM_TRAINER": "false"}
    running = Service(folder / "service" / "data", folder / "models", **env)
    running.start(180)
    yield running
    running.close()


@pytest.fixture(scope="module")
def prompts(service: Service, tmp_path_factory: pytest.TempPathFactory) -> str:
    client = service.client()
    file = client.files.create(file=write_rows(tmp_path_factory.mktemp("rows") / "train.jsonl"))
    client.files.wait_for_processing(file.id, timeout=120)
    return str(file.id)


def start(service: Service, prompts: str, fast_inference: bool) -> tunesmith.Job:
    return service.client().fine_tuning.jobs.create(
        model="tiny",
        training_file=prompts,
        seed=5,
        recipe=RECIPE | {"rollout": {"fast_inference": fast_inference}},
        grader=GRADER,
    )


@pytest.fixture(scope="module")
def expected(service: Service, prompts: str) -> list[Sample]:
    """Completions of the native engine."""
    job = start(service, prompts, fast_inference=False).wait(timeout=400)
    assert job.status == "succeeded"
    return completions(job)


def test_the_process_of_trainer_and_vllm_is_killed(
    service: Service, prompts: str, expected: list[Sample]
) -> None:
    job = start(service, prompts, fast_inference=True)
    try:
        kill_when(service, in_generation, 200)
    except AssertionError as error:
        raise AssertionError(missed(job)) from error
    job.wait(timeout=600)
    assert job.attempt == 2
    check(job, expected)


def test_the_server_is_killed_and_started_again(
    service: Service, prompts: str, expected: list[Sample], tmp_path: Path
) -> None:
    options = (*ROLLOUTS, "--skip-tokenizer-init", "--max-num-seqs", "8")
    model = Path(service._env["TUNESMITH_MODEL_DIRS"]) / "tiny"
    with vllm_server(model, tmp_path / "log", options, PYTHON) as server:
        service.stop()
        service._env["TUNESMITH_ROLLOUT_URL"] = server.url
        service.start(180)
        job = start(service, prompts, fast_inference=True)
        kill_in_generation(service, server, job)
        threading.Timer(1.0, server.start).start()  # as a service manager does
        job.wait(timeout=600)
    assert job.attempt == 1, "the trainer has waited for the server"
    [restart] = [e.message for e in job.stream() if "starts again (restart 1 of 2)" in e.message]
    assert "does not answer" in restart
    check(job, expected)


def check(job: tunesmith.Job, expected: list[Sample]) -> None:
    assert job.status == "succeeded"
    assert completions(job) == expected
    assert Counter(one.step for one in job.samples()) == dict.fromkeys(
        range(1, STEPS + 1), GROUP * PROMPTS
    )
    points = list(job.metrics())
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    for point in points:
        ratio, largest, masked = (point.values[name] for name in IMPORTANCE)
        assert ratio == pytest.approx(1.0, abs=1e-3)
        assert largest == pytest.approx(1.0, abs=1e-2)
        assert masked == 0.0
    choices = {choice.name: choice.value for choice in job.report().choices}
    assert choices["rollout_engine"] == "vllm"
    assert choices["importance_sampling"] == "sequence_mask"


def completions(job: tunesmith.Job) -> list[Sample]:
    return [
        (one.step, one.group, one.row, one.completion, one.completion_tokens, one.reward)
        for one in job.samples()
    ]


def kill_in_generation(service: Service, server: VLLMServer, job: tunesmith.Job) -> None:
    """Let the server run 10 ms at a time, and kill it while some of the completions of the second
    or third step are missing."""
    assert server.process is not None
    deadline = time.monotonic() + 200
    while not service.trainers() and time.monotonic() < deadline:
        time.sleep(0.05)
    runs = [Path(f"/proc/{pid}/cwd").readlink() for pid in service.trainers()]
    while time.monotonic() < deadline:
        os.killpg(server.process.pid, signal.SIGSTOP)
        if any(in_generation(run) for run in runs):
            server.kill()
            return
        os.killpg(server.process.pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError(missed(job))


def missed(job: tunesmith.Job) -> str:
    lengths = [(one.step, one.completion_tokens) for one in job.samples()]
    return f"no rollout was seen in progress: {job.refresh()}, completion tokens {lengths}"

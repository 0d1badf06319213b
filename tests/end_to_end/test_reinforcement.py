"""A reinforcement job through the service, left alone and killed in the middle of its steps."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tunesmith
from tunesmith_schema import EventKind

from ..tiny_model import make_tiny_model
from .service import QUICK, Service, until

pytestmark = pytest.mark.slow

STEPS, GROUP, PROMPTS, LENGTH = 8, 4, 3, 160
RECIPE: dict[str, Any] = {
    "max_steps": STEPS,
    "save_steps": 1,
    "learning_rate": 1e-2,
    "self_check": False,
    "lora": {"r": 4},
    "grpo": {
        "num_generations": GROUP,
        "prompts_per_step": PROMPTS,
        "max_completion_length": LENGTH,
        "num_iterations": 1,
    },
}
GRADER = {"type": "length", "unit": "characters", "target": 100, "limit": 800}
"""Of what a random model writes, no two completions have the same."""
WATCHED = {
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "completion_length",
    "entropy",
    "clip_ratio",
    "rollout_gap",
}


@pytest.fixture(scope="module")
def sturdy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("reinforcement")
    make_tiny_model(folder / "models" / "tiny")
    env = QUICK | {"TUNESMITH_RETRY_SECONDS": "0.1"}
    running = Service(folder / "service" / "data", folder / "models", **env)
    running.start()
    yield running
    running.close()


@pytest.fixture(scope="module")
def prompts(sturdy: Service, rows: Path) -> str:
    client = sturdy.client()
    file = client.files.create(file=rows)
    client.files.wait_for_processing(file.id, timeout=60)
    return file.id


def start(service: Service, prompts: str) -> tunesmith.Job:
    return service.client().fine_tuning.jobs.create(
        model="tiny", training_file=prompts, seed=5, recipe=RECIPE, grader=GRADER
    )


@pytest.fixture(scope="module")
def whole(sturdy: Service, prompts: str) -> tunesmith.Job:
    """Left alone."""
    return start(sturdy, prompts).wait(timeout=120)


def test_a_reinforcement_job_tells_rewards_samples_and_where_its_time_went(
    whole: tunesmith.Job,
) -> None:
    assert (whole.status, whole.attempt, whole.step) == ("succeeded", 1, STEPS)
    points = list(whole.metrics())
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    for point in points:
        assert {name for name, value in point.values.items() if value is not None} >= WATCHED
    third = list(whole.samples(step=3))
    assert Counter(one.group for one in third) == dict.fromkeys(range(PROMPTS), GROUP)
    assert points[2].values["reward"] == pytest.approx(
        sum(one.reward or 0.0 for one in third) / len(third), rel=1e-3
    )
    for one in third:
        assert one.reward == one.scores["length"] is not None
        assert one.prompt.startswith("<|im_start|>user\nHow much is ")
        assert one.completion
        assert 0 < one.completion_tokens <= LENGTH
        assert (one.finish_reason == "length") == (one.completion_tokens == LENGTH)
        assert one.prompt_tokens > 5
        assert 0 <= one.row < 64
        assert one.advantage is not None
    assert sum(one.advantage or 0.0 for one in third) == pytest.approx(0.0, abs=1e-3)
    report = whole.report()
    assert {"generate", "sync", "forward", "backward"} <= {
        name for name, seconds in report.phases.items() if seconds > 0
    }
    assert report.phases["grade"] >= 0, "beside the generation, so that little is left of it"
    told = sum(seconds for name, seconds in report.phases.items() if name != "other")
    assert told >= 0.97 * report.wall_seconds


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines that there are."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def in_generation(run: Path) -> bool:
    """Some of a later step's completions are there, others are not."""
    lines = lines_of(run / "rollouts.jsonl")
    return bool(lines) and lines[0]["step"] >= 1 and 1 < len(lines) < 1 + lines[0]["count"]


def in_training(run: Path) -> bool:
    """All of a later step's are drawn and graded, and its update has not been told."""
    events = lines_of(run / "events.jsonl")
    steps = {
        kind: [event["data"]["step"] for event in events if event["kind"] == kind]
        for kind in (EventKind.SAMPLES, EventKind.METRICS)
    }
    drawn = max(steps[EventKind.SAMPLES], default=0)
    return drawn >= 3 and drawn > max(steps[EventKind.METRICS], default=0)


def kill_when(
    service: Service, in_the_middle: Callable[[Path], bool], seconds: float = 150
) -> None:
    """Kill the trainer at that moment."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for trainer in service.trainers():
            if killed(trainer, in_the_middle, deadline):
                return
        time.sleep(0.01)
    raise AssertionError("that moment never came")


def killed(trainer: int, in_the_middle: Callable[[Path], bool], deadline: float) -> bool:
    """Let the trainer run 10 ms at a time, and kill it at that moment. Return False if the trainer
    ends before."""
    try:
        run = Path(f"/proc/{trainer}/cwd").readlink()
        while time.monotonic() < deadline:
            os.kill(trainer, signal.SIGSTOP)
            if in_the_middle(run):
                os.kill(trainer, signal.SIGKILL)
                return True
            os.kill(trainer, signal.SIGCONT)
            time.sleep(0.01)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return False


def test_killed_while_it_generates_and_while_it_trains_it_ends_as_if_left_alone(
    sturdy: Service, prompts: str, whole: tunesmith.Job
) -> None:
    job = start(sturdy, prompts)
    kill_when(sturdy, in_generation)
    until(lambda: job.refresh().attempt == 2)
    kill_when(sturdy, in_training)
    job.wait(timeout=120)
    assert job.attempt == 3
    assert weights_of(sturdy, job) == weights_of(sturdy, whole)
    events = list(job.stream())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [point.step for point in job.metrics()] == list(range(1, STEPS + 1))
    assert told(job) == told(whole), "no sample is lost, doubled or another"
    resumed = [event.data["step"] for event in events if event.kind == EventKind.RESUMED]
    assert len(resumed) == 2


def weights_of(service: Service, job: tunesmith.Job) -> dict[str, str]:
    assert job.adapter_id is not None
    adapter = service.client().adapters.retrieve(job.adapter_id)
    return {f.name: f.sha256 for f in adapter.files if f.name == "adapter_model.safetensors"}


def told(job: tunesmith.Job) -> list[dict[str, Any]]:
    """Samples without what differs between two jobs."""
    return [one.model_dump(exclude={"id", "created_at"}) for one in job.samples()]

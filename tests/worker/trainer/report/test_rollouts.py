"""The report of a reinforcement run: a stand-in trainer whose every phase takes a known time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from tests.worker.rundir.reports import report as planted
from tunesmith_schema import RunReport
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.rundir.paths import RunDirectory
from tunesmith_worker.trainer.report.recorder import RunRecorder
from tunesmith_worker.trainer.report.rollouts import RewardCounts, RolloutCounts, RoundFigures

STEPS = 4
COSTS = {"sync": 0.1, "generate": 6.0, "grade": 0.5, "log_probs": 0.3, "forward": 1.0}
FIGURES = RoundFigures(
    num_iterations=1, completions=16, generated_tokens=600, longest=64, truncated=4,
    rewards=RewardCounts(groups=2, equal_groups=1, ungraded=4), decode_steps=64, graph_steps=60,
    engine="native", weights="merged", layout="shared", trained_slots=700, plain_slots=1400,
)  # fmt: skip


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class StandIn:
    """What the report asks of a trainer; its steps book their phases as a real one does."""

    TIMED_STEP = "train_on"

    def __init__(self, recorder: RunRecorder, time: Time) -> None:
        self.args = SimpleNamespace(device=torch.device("cpu"))
        self.model: Any = torch.nn.Linear(2, 2)  # Any: a config is set on it
        self.model.config = LlamaConfig(num_hidden_layers=1)
        self.state = SimpleNamespace(global_step=0, max_steps=STEPS)
        self.steps_before = self.tokens_before = self.trained_tokens = 0
        self._recorder, self._time = recorder, time

    def __getattr__(self, name: str) -> Any:  # Any: methods of transformers' trainer
        return lambda *arguments, **named: None

    def training_step(self, model: Any, inputs: Any) -> None:
        clock = self._recorder.clock
        for phase in ("sync", "generate", "grade", "log_probs"):
            with clock.during(phase):
                self._time.now += COSTS[phase]
        self._recorder.rollout(FIGURES)
        self.train_on(model, {"lengths": [50] * 14})

    def train_on(self, model: Any, batch: Any) -> None:
        self.compute_loss(model, batch)
        self._time.now += 2.0  # the backward pass

    def describe(self, batch: Any) -> Any:
        return SimpleNamespace(tokens=700)

    def compute_loss(self, model: Any, inputs: Any) -> None:
        self._time.now += COSTS["forward"]

    def train(self) -> None:
        for _ in range(STEPS):
            self.training_step(None, [{"prompt": "2 + 2 ="}])
            self._time.now += 0.25  # the optimiser
            self.state.global_step += 1
            self.trained_tokens += 600
            self._maybe_log_save_evaluate()


@pytest.fixture
def recorder(tmp_path: Path) -> RunRecorder:
    found = RunRecorder(RunDirectory(tmp_path))
    found.clock = WallClock(Time())
    return found


def trained(recorder: RunRecorder) -> tuple[RunReport, dict[str, float | None]]:
    time = recorder.clock._now
    assert isinstance(time, Time)
    trainer = StandIn(recorder, time)
    settings = planted().settings
    assert settings is not None
    layouts: Any = SimpleNamespace(chosen=SimpleNamespace(kind="padding_free"))
    recorder.watch(trainer, settings, layouts, device="cpu", choices=[])
    trainer.train()
    return recorder.report(None), recorder.live()


def test_every_moment_of_a_step_has_its_phase(recorder: RunRecorder) -> None:
    report, _ = trained(recorder)
    expected = {name: STEPS * seconds for name, seconds in COSTS.items()}
    assert {name: report.phases[name] for name in COSTS} == pytest.approx(expected)
    assert report.phases["backward"] == pytest.approx(STEPS * 2.0)
    assert report.phases["optimizer"] == pytest.approx(STEPS * 0.25)
    named = sum(seconds for name, seconds in report.phases.items() if name != "other")
    assert named >= 0.97 * report.wall_seconds
    assert report.bound.by == "generation"
    assert report.advice.rule == "generation"


def test_rates_are_those_of_generation_and_of_training(recorder: RunRecorder) -> None:
    report, live = trained(recorder)
    found, throughput = report.rollouts, report.throughput
    assert found is not None
    assert throughput is not None
    assert (found.rounds, found.completions, found.generated_tokens) == (4, 64, 2400)
    assert found.tokens_per_second == pytest.approx(100.0)  # 600 tokens in 6 s
    assert throughput.generated_tokens_per_second == pytest.approx(600 / 10.15, abs=0.01)
    assert (throughput.input_tokens, throughput.slots) == (4 * 700, 4 * 700)
    # Generation is not counted among the model's FLOPs, nor is its time.
    assert report.utilization is not None
    assert "the generation of completions is not counted" in report.utilization.reason
    assert live["generate_share"] == pytest.approx(6.0 / 10.15, abs=1e-4)
    assert live["grade_share"] == pytest.approx(0.5 / 10.15, abs=1e-4)
    spent = {"sync": 0.1, "log_probs": 0.3, "forward": 1.0, "backward": 2.0, "idle": 0.5}
    for name, seconds in spent.items():
        assert live[f"{name}_share"] == pytest.approx(seconds / 10.15, abs=1e-4)
    assert found.idle_share == pytest.approx(0.5 / 10.15, abs=1e-4)
    assert live["generated_tokens_per_second"] == pytest.approx(100.0)


def test_shares_are_of_all_rounds() -> None:
    counts = RolloutCounts()
    assert counts.read(0.0) is None
    counts.add(FIGURES)
    counts.add(
        RoundFigures(
            num_iterations=1, completions=16, generated_tokens=200, longest=20, truncated=0,
            rewards=RewardCounts(groups=2, equal_groups=0, ungraded=2), decode_steps=20,
            engine="native", weights="merged", layout="plain", trained_slots=900, plain_slots=900,
        )
    )  # fmt: skip
    found = counts.read(0.0)
    assert found is not None
    assert (found.truncated_share, found.zero_std_share) == (4 / 32, 1 / 4)
    assert found.ungraded_share == 6 / 32
    assert (found.mean_length, found.longest) == (25.0, 64)
    assert (found.decode_steps, found.graph_steps) == (84, 60)
    assert (found.layout, found.token_ratio) == ("plain", round(2300 / 1600, 4))
    assert found.tokens_per_second is None

"""The gap between rollouts and training: measured without training's noise, an error if large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.engine.patches.models import make_model
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.checkpoints.interrupted import weights_hash
from tunesmith_schema import EventKind
from tunesmith_worker.engine.rollout import Completion, NativeEngine
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.methods.grpo import GRPOTrainer
from tunesmith_worker.trainer.methods.train_noise import differs_in_training
from tunesmith_worker.trainer.rollout_warnings import RolloutWarnings
from tunesmith_worker.trainer.run import main

from .test_exactness import ASKED, BASE, GRPO, LENGTH

Untyped = Any  # Any: transformers is not typed
DROPOUT: dict[str, Any] = {"lora": {"r": 4, "lora_dropout": 0.4}}


def make(make_run: MakeRun, name: str = "run", **recipe: Any) -> Path:
    given = BASE | {"grpo": GRPO, "max_steps": 4, "learning_rate": 3e-2, "self_check": True}
    return make_run(ASKED, recipe=given | recipe, name=name, method="reinforcement", grader=LENGTH)


def gaps(run: Path) -> list[float]:
    metrics = event_data(run, EventKind.METRICS)
    return [point["rollout_gap"] for point in metrics if point.get("rollout_gap") is not None]


def warnings(run: Path) -> list[str]:
    return [event.message for event in read_events(run) if event.level == "warn"]


def test_dropout_is_no_gap(make_run: MakeRun) -> None:
    run = make(make_run, **DROPOUT)
    assert main(run) == 0, read_result(run).error
    assert not [text for text in warnings(run) if "rollout_gap" in text]
    assert len(gaps(run)) >= 2
    assert max(gaps(run)) < 1e-4


def test_the_measurement_changes_no_bit_of_a_run_with_dropout(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = make(make_run, "measured", **DROPOUT)
    assert main(measured) == 0, read_result(measured).error
    monkeypatch.setattr(GRPOTrainer, "measure_gap", lambda trainer, batch: 0.0)
    plain = make(make_run, "plain", **DROPOUT)
    assert main(plain) == 0, read_result(plain).error
    assert weights_hash(measured) == weights_hash(plain)


@pytest.mark.parametrize("recipe", [{}, DROPOUT], ids=["plain", "dropout"])
@pytest.mark.parametrize(
    ("off", "outcome"), [(0.05, "succeeded"), (0.5, "failed")], ids=["a little", "far"]
)
def test_a_gap_is_warned_of_and_a_far_larger_one_ends_the_run(
    make_run: MakeRun,
    monkeypatch: pytest.MonkeyPatch,
    recipe: dict[str, Any],
    off: float,
    outcome: str,
) -> None:
    """Log-probabilities as an engine with other weights would return them."""
    run = make(make_run, max_steps=2, **recipe)
    monkeypatch.setattr(NativeEngine, "generate", wrong_by(off, NativeEngine.generate))
    monkeypatch.setattr("tunesmith_worker.trainer.assemble_grpo.self_check", lambda *_: None)
    main(run)
    result = read_result(run)
    assert result.outcome == outcome, result.error
    if result.error is None:
        (text,) = [text for text in warnings(run) if "rollout_gap" in text]
        assert "is 0.05 (healthy: up to 0.01)" in text
        return
    assert result.error.code == "self_check_failed"
    assert result.error.message.startswith("Step 1: rollout_gap: ")
    assert "0.5" in result.error.message


def wrong_by(off: float, generate: Callable[..., list[Completion]]) -> Untyped:
    def wrong(engine: NativeEngine, *given: Untyped) -> list[Completion]:
        return [
            replace(one, policy_logprobs=[value - off for value in one.policy_logprobs])
            for one in generate(engine, *given)
        ]

    return wrong


@pytest.mark.parametrize(
    ("settings", "noisy"),
    [({}, False), ({"attention_dropout": 0.1}, True), ({"router_jitter_noise": 0.1}, True)],
)
def test_noise_is_read_from_the_configuration_and_the_modules(
    settings: dict[str, float], noisy: bool
) -> None:
    model = make_model("llama")
    for name, value in settings.items():
        setattr(model.config, name, value)
    assert differs_in_training(model) is noisy
    model.base_model.layers[0].extra = torch.nn.Dropout(0.1)
    assert differs_in_training(model)


def test_events_name_the_step_of_a_gap(tmp_path: Path) -> None:
    seen = RolloutWarnings(
        EventLog(tmp_path / "events.jsonl"),
        "bf16",
        groups_with_spread=lambda: 1,
        will_resume=lambda: False,
    )
    state = SimpleNamespace(global_step=7)
    seen.on_log(None, state, None, {"loss": 0.0, "rollout_gap": 0.9})
    with pytest.raises(RunError, match=r"^Step 7: rollout_gap: .* is 1\.1 nats"):
        seen.on_log(None, state, None, {"loss": 0.0, "rollout_gap": 1.1})

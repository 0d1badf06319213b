"""Whole runs whose engine has a fault, or dies in a rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tests.worker.trainer.selfcheck.rollouts.engines import WithoutAdapter
from tests.worker.trainer.test_run_engine import DyingEngine, use_as_vllm
from tunesmith_schema import EventKind
from tunesmith_worker.engine.rollout import NativeEngine
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.selfcheck import rollout_checks

from .test_exactness import BASE, GRPO
from .test_messages import LENGTH, ROWS

Untyped = Any  # Any: transformers is not typed


def make(make_run: MakeRun, name: str, fast_inference: Any, **recipe: Any) -> Path:
    rollout = {"fast_inference": fast_inference, "importance_sampling": "off"}
    given = BASE | {"grpo": GRPO, "max_steps": 2, "logging_steps": 1, "rollout": rollout} | recipe
    return make_run(ROWS, recipe=given, method="reinforcement", grader=LENGTH, name=name)


def rewards(run: Path) -> list[Any]:
    return [point["reward"] for point in event_data(run, EventKind.METRICS) if "reward" in point]


def samples(run: Path) -> list[str]:
    return [file.read_text() for file in sorted((run / "samples").glob("*.jsonl"))]


def engine_in_plan(run: Path) -> str:
    plan = json.loads((run / "plan.json").read_text())
    return str(next(c["value"] for c in plan["choices"] if c["name"] == "rollout_engine"))


@pytest.mark.parametrize("fast_inference", ["auto", True])
def test_an_engine_that_dies_in_a_rollout_loses_nothing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, fast_inference: Any
) -> None:
    """The run is the same as without the death, because seeds decide what is sampled."""
    plain = make(make_run, "plain", False)
    assert main(plain) == 0, read_result(plain).error

    class Dying(DyingEngine):
        dies = 1

    use_as_vllm(monkeypatch, Dying)
    run = make(make_run, "run", fast_inference)
    assert main(run) == 0, read_result(run).error
    assert samples(run) == samples(plain)
    assert rewards(run) == pytest.approx(rewards(plain), abs=1e-6)
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    (said,) = [message for message in warnings if "ended by signal 9" in message]
    assert ("changes from vllm to native" in said) == (fast_inference == "auto")
    assert ("starts again (restart 1 of 2)" in said) == (fast_inference is True)
    expected = "native" if fast_inference == "auto" else "vllm"
    assert engine_in_plan(run) == expected
    assert json.loads((run / "report.json").read_text())["rollouts"]["engine"] == expected
    assert Dying.closed >= 1


class ForgetsAdapter(WithoutAdapter):
    """Stand-in for vLLM that forgets the adapter."""

    name = "vllm"

    def __init__(self, model: Untyped, *_: Untyped) -> None:
        super().__init__(model)


class KeepsDtype(NativeEngine):
    """Stand-in for vLLM without fault, which would not follow a change of the dtype."""

    name = "vllm"
    samples_from_uniforms = False
    follows_dtype = False

    def generate(self, *given: Untyped) -> Untyped:
        assert self._model.dtype == torch.bfloat16
        return super().generate(*given)


def test_a_fault_is_named_and_the_next_engine_is_checked(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_as_vllm(monkeypatch, ForgetsAdapter)
    run = make(make_run, "auto", "auto", self_check=True, max_steps=1)
    assert main(run) == 0, read_result(run).error
    (said,) = [
        event.message
        for event in read_events(run)
        if "changes from vllm to native" in event.message
    ]
    assert "rollout_equals_stock: adapter not used" in said
    assert engine_in_plan(run) == "native"


def test_the_start_of_the_engine_takes_no_time_of_the_self_check(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM starts in 5 to 60 s, and the checks have 20 s."""
    seen: list[str] = []

    class Starts(KeepsDtype):
        samples_from_uniforms = True

        def start(self) -> None:
            seen.append("start")

        def generate(self, *given: Untyped) -> Untyped:
            seen.append("generate")
            return NativeEngine.generate(self, *given)

    def check_engines(*given: Untyped, **named: Untyped) -> Untyped:
        seen.append("check")
        return real(*given, **named)

    real = rollout_checks.check_engines
    monkeypatch.setattr(rollout_checks, "check_engines", check_engines)
    use_as_vllm(monkeypatch, Starts)
    run = make(make_run, "starts", True, self_check=True, max_steps=1)
    assert main(run) == 0, read_result(run).error
    assert seen[:3] == ["start", "check", "generate"]


def test_a_demanded_engine_with_a_fault_ends_the_run(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_as_vllm(monkeypatch, ForgetsAdapter)
    run = make(make_run, "demanded", True, self_check=True, max_steps=1)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == "self_check_failed"
    assert "rollout_equals_stock" in error.message
    assert not any("changes from" in event.message for event in read_events(run))


def test_an_engine_that_keeps_its_dtype_is_checked_in_16_bits(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_as_vllm(monkeypatch, KeepsDtype)
    run = make(make_run, "bf16", True, self_check=True, max_steps=1, precision="bf16")
    assert main(run) == 0, read_result(run).error
    (said,) = [e.message for e in read_events(run) if e.message.startswith("self-check: ")]
    assert "the random numbers of vllm are not known" in said or "rounding to 16 bits" in said

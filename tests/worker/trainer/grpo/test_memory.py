"""Reinforcement on little memory: layers that recompute, steps that do not fit, and what a user
reads where completions cannot be generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, losses, read_events, read_result
from tests.worker.trainer.auto.test_memory_plan import Device, chosen
from tests.worker.trainer.checkpoints.interrupted import weights_hash
from tunesmith_schema import EventKind
from tunesmith_worker.engine.memory.choose import FreeMemory
from tunesmith_worker.engine.rollout import Completion, NativeEngine
from tunesmith_worker.trainer import assemble_grpo as reinforcement
from tunesmith_worker.trainer.run import main

from .test_exactness import make


def test_layers_that_recompute_do_so_in_every_step_and_change_nothing(make_run: MakeRun) -> None:
    """TRL turns recomputation off and on again around what it does without gradients."""
    recipe = {"lora": {"r": 4, "lora_dropout": 0.1}, "save_steps": 100}
    keep = make(make_run, "keep", recipe | {"gradient_checkpointing": False})
    recompute = make(make_run, "recompute", recipe | {"gradient_checkpointing": True})
    assert main(keep) == 0, read_result(keep).error
    assert main(recompute) == 0, read_result(recompute).error
    assert weights_hash(recompute) == weights_hash(keep)
    layers = json.loads((recompute / "report.json").read_text())["layers"]
    assert layers["recomputes"] == [5, 5], "once a step"
    assert not any("not as planned" in event.message for event in read_events(recompute))


def test_a_step_that_runs_out_of_memory_begins_again_with_the_same_completions(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = {"save_steps": 100}
    whole = make(make_run, "whole", recipe)
    assert main(whole) == 0, read_result(whole).error
    asked: list[int] = []
    generate = NativeEngine.generate

    def counted(engine: NativeEngine, requests: Any, *rest: Any) -> list[Completion]:  # Any: passed
        asked.append(len(requests))
        return generate(engine, requests, *rest)

    monkeypatch.setattr(NativeEngine, "generate", counted)
    device = Device(monkeypatch, lambda now: now.keeps and now.calls > 10)
    broken = make(make_run, "broken", recipe)
    assert main(broken) == 0, read_result(broken).error
    assert device.failures > 0, "it has run out"
    assert chosen(broken)["keep"] < chosen(whole)["keep"]
    assert asked == [6] * 5, "nothing is drawn twice"
    assert losses(broken) == pytest.approx(losses(whole), abs=1e-6)
    steps = [data["step"] for data in event_data(broken, EventKind.SAMPLES)]
    assert steps == [1, 2, 3, 4, 5]


def ends_with(run: Path) -> tuple[str, str, str]:
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    return error.code, error.category, error.message


@pytest.mark.parametrize("when", ["planned", "generating"])
def test_rollouts_that_do_not_fit_say_what_to_lower(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nand more")

    if when == "planned":
        room = FreeMemory(free=1 << 10, host_free=0, on_gpu=False)
        monkeypatch.setattr(reinforcement, "read_free_memory", lambda *_: room)
    else:
        monkeypatch.setattr(NativeEngine, "generate", full)
    run = make(make_run, "run", {})
    code, category, message = ends_with(run)
    assert (code, category) == ("out_of_memory", "out_of_memory")
    assert ("one completion of" if when == "planned" else "while generating") in message
    error = read_result(run).error
    assert error is not None
    assert "max_completion_length" in str(error.hint)

"""The self-check takes what memory is left beside the weights, and stops no run for want of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.engine.memory.choose import FreeMemory
from tunesmith_worker.trainer.auto import memory_plan
from tunesmith_worker.trainer.run import main
from tunesmith_worker.trainer.selfcheck import model_runs, numerics

Untyped = Any  # Any: a model, and JSON
RECIPE = {"max_steps": 1, "precision": "bf16"}


def checks(run: Untyped) -> Untyped:
    (told,) = (data for data in event_data(run, EventKind.MESSAGE) if "checks" in data)
    return told["checks"]


@pytest.mark.parametrize(("spare", "in_fp32"), [(3.3, False), (40.0, True)])
def test_fp32_weights_take_their_share_of_what_the_weights_leave(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, spare: float, in_fp32: bool
) -> None:
    """`spare`: what is free beside the weights, as a multiple of them."""
    seen = []
    right = model_runs.in_fp32

    def read_free_memory(device: torch.device, held: int) -> FreeMemory:
        return FreeMemory(free=int(held * (1 + spare)), host_free=1 << 40, on_gpu=True)

    def watched(model: Untyped) -> Untyped:
        seen.append(model)
        return right(model)

    monkeypatch.setattr(memory_plan, "read_free_memory", read_free_memory)
    monkeypatch.setattr(numerics, "in_fp32", watched)
    run = make_run(QUESTIONS, recipe=RECIPE)
    assert main(run) == 0, read_result(run).error
    assert bool(seen) == in_fp32
    assert checks(run)["patched_equals_stock"]["state"] == "passed"


def test_a_run_that_needs_less_goes_on(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(model: Untyped) -> Untyped:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(numerics, "in_fp32", full)
    run = make_run(QUESTIONS, recipe=RECIPE)
    assert main(run) == 0, read_result(run).error
    states = {name: one["state"] for name, one in checks(run).items()}
    assert states["rows_apart"] == states["patched_equals_stock"] == "skipped"
    assert states["adapter_acts"] == "passed"

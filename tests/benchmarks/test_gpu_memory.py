"""The parts `memory` and `precision` of benchmarks.gpu on tiny shapes, as a GPU will run them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.gpu import memory, precision
from benchmarks.gpu.bars import BARS, judge

CPU = torch.device("cpu")


def bars(results: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
    """Figure and verdict of those that are of these parts."""
    names = ("memory:", "precision:")
    found = (one for one in judge(results) if one["bar"].startswith(names))
    return {one["bar"]: (one["figure"], one["met"]) for one in found}


@pytest.mark.parametrize("mode", ["keep", "half", "recompute", "offload"])
def test_a_peak_is_predicted_and_held(mode: str) -> None:
    name = f"tiny-llama/2x128/{mode}"
    found = memory.cases(CPU)[name]()
    assert found["held_bytes"] > sum(found["items"].get(one, 0) for one in ("weights", "adapter"))
    # On so small a model what no formula counts is much: the bar is for real ones.
    assert -0.1 < found["error"] < 1.0
    layers = {"keep": 0, "half": 1, "recompute": 2, "offload": 2}[mode]
    assert found["recomputes"] == 2 * layers  # on a CPU the trial has two passes
    assert (found["pinned_predicted_bytes"] > 0) == (mode == "offload")
    judged = bars({"memory": {name: found}})
    assert judged["memory: worst error of a predicted peak"] == (
        pytest.approx(abs(found["error"]), rel=1e-3),
        abs(found["error"]) <= 0.10,
    )
    assert judged["memory: worst error of predicted pinned memory"] == (None, None)


def test_offloading_is_timed_and_what_goes_to_the_host_is_counted() -> None:
    found = memory.cases(CPU)["tiny-llama/offload"]()
    assert found["passed"]
    assert found["overhead"] > -1
    assert found["planner_calls_it_free"] is False  # a CPU has no other memory
    wide = found | {"hidden": 4096, "tokens": 4096, "planner_calls_it_free": True}
    for overhead, met in ((0.01, True), (0.03, False)):
        judged = bars({"memory": {"a/offload": wide | {"overhead": overhead}}})
        assert judged["memory: time overhead of offloading"] == (overhead, met)


def test_a_long_row_is_answered_before_it_is_loaded_and_then_run() -> None:
    found = memory.cases(CPU)["tiny-llama/long"]()
    assert (found["fits"], found["passed"]) == (True, True)
    assert sum(found["items"].values()) == found["predicted_bytes"] < found["budget_bytes"]


def test_eighty_thousand_tokens_of_8b_are_answered_item_by_item() -> None:
    """Without any of its weights."""
    from benchmarks.gpu.models import CONFIGS

    from tunesmith_worker.engine.memory import shapes

    shape = shapes.shape_of(CONFIGS["llama-3.1-8b"]())
    assert shape.parameters == pytest.approx(8.03e9, rel=0.01)


def test_precisions_are_weighed_timed_and_trained() -> None:
    cases = precision.cases(CPU)
    found = {name: run() for name, run in cases.items()}
    weighed = found["tiny-llama/bytes"]
    assert weighed["fp32"] == pytest.approx(12, rel=0.01)
    assert weighed["bf16_error_word"] == pytest.approx(12, rel=0.01)
    assert weighed["bf16"] == pytest.approx(6, rel=0.01)
    assert weighed["bf16_sr8"] < 6
    losses = found["tiny-llama/loss"]
    assert losses["relative"]["fp32"] == 0.0
    assert abs(losses["relative"]["bf16_error_word"]) < 0.05
    judged = bars({"precision": found})
    assert judged["precision: bytes per parameter in bf16_sr8"] == (
        pytest.approx(weighed["bf16_sr8"], rel=1e-3),
        True,
    )
    assert judged["precision: loss difference of split masters relative to fp32"][0] == (
        pytest.approx(abs(losses["relative"]["bf16_error_word"]), rel=1e-3)
    )
    slow = found | {"tiny-llama/time": {"ratio": 1.2}}
    assert bars({"precision": slow})[
        "precision: step time with split masters relative to plain bf16"
    ] == (
        1.2,
        False,
    )
    assert len(judge({})) == len(BARS)

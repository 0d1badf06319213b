"""A tripwire of benchmarks/rollout.py: both sides run, on a tiny model. No time is asserted."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from benchmarks import rollout, rollout_side

from tests.worker.engine.patches.models import make_model, with_lora

Untyped = Any  # Any: transformers is not typed


def test_completions_are_even_or_log_uniform() -> None:
    assert rollout_side.lengths(False) == [128] * 16
    ragged = rollout_side.lengths(True)
    assert len(ragged) == 16
    assert 16 <= min(ragged) < 40
    assert 80 < max(ragged) <= 128


@pytest.mark.parametrize("side", ["merged", "in_place", "generate", "generate-merged"])
def test_both_sides_run(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunesmith_worker.rundir.process.keep_freed_memory", lambda: None)
    model = with_lora(make_model("llama")).eval()
    prompts, wanted = [[5, 6, 7], [8, 9, 10]], [3, 5] * 8
    if side in ("merged", "in_place"):
        run: Untyped = rollout_side.ours(model, prompts, wanted, side)
    else:
        run = rollout_side.theirs(model, prompts, wanted, side == "generate-merged")
    assert run() >= 0.0


def test_the_summary_is_of_pairs() -> None:
    given = Namespace(
        dtype="float32", prompt_tokens=70, ragged=False, layout="merged", against="generate",
        their_allocator=False,
    )  # fmt: skip
    one = {"cpu_seconds": 1.0, "sync_cpu_seconds": 0.1, "peak_above_idle_mib": 50.0, "torch": "2"}
    other = one | {"cpu_seconds": 3.0, "peak_above_idle_mib": 100.0}
    found = rollout.summary(given, [one, one], [other, other | {"cpu_seconds": 2.0}])
    assert (found["speed_ratio"], found["speed_bar"]) == (2.5, 2.4)
    assert found["memory_ratio"] == 0.5
    assert found["sync_share"] == 0.1

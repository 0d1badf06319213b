"""A tripwire of benchmarks/rollout.py: both sides run, on a tiny model. No time is asserted."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from benchmarks import rollout, rollout_engines, rollout_side, rollout_sync

from tests.worker.engine.patches.models import make_model, with_lora
from tunesmith_worker.engine.rollout import choose

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


@pytest.mark.parametrize("name", ["native", "transformers"])
def test_each_engine_is_measured(name: str) -> None:
    model = with_lora(make_model("llama")).eval()
    found = rollout_engines.measure(name, model, [(1, 3), (9, 5)], new=4)
    assert (found["engine"], found["skipped"]) == (name, None)
    places = [(cell["rows"], cell["prompt_tokens"]) for cell in found["cells"]]
    assert places == [(1, 3), (9, 5)]
    assert all(cell["tokens_per_cpu_second"] > 0 for cell in found["cells"])


@pytest.mark.parametrize("way", ["fold", "merged"])
def test_syncs_are_measured(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_sync, "NEW", 4)
    model = with_lora(make_model("llama")).eval()
    found = rollout_sync.measure(way, model)
    adapted = rollout_sync.adapted_bytes(model)
    assert found["bytes"] == (2 * adapted if way == "fold" else adapted) > 0
    assert found["sync_cpu_seconds"] >= 0
    assert found["tokens_per_cpu_second"] > 0


def test_an_absent_engine_is_skipped_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    found = rollout_engines.measure("vllm", make_model("llama"), [(1, 3)], new=4)
    assert found["cells"] == []
    assert "vLLM is not installed" in found["skipped"]


def test_lines_compare_with_the_native_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"native": 300.0, "transformers": 100.0}

    def run_side(script: Untyped, side: str, *_: Untyped) -> Untyped:
        if side == "vllm":
            return {"skipped": "no vLLM", "cells": []}
        cell = {"rows": 8, "prompt_tokens": 16, "tokens_per_cpu_second": speeds[side]}
        return {"skipped": None, "cells": [cell]}

    monkeypatch.setattr(rollout, "run_side", run_side)
    lines = list(rollout.engine_lines("float32", "python"))
    assert [line.get("over_native") for line in lines] == [1.0, 3.0, None]
    assert lines[2]["skipped"] == "no vLLM"


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

"""A small run of benchmarks/grpo.py: a tripwire below its bars, which a busy machine passes."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from benchmarks import grpo, grpo_parity, grpo_side, grpo_task
from benchmarks.grpo_task import Task

Untyped = Any  # Any: transformers is not typed

TASK = Task(
    side="ours",
    dtype="float32",
    tuning="lora",
    prompt_tokens=96,
    new_tokens=24,
    ragged=True,
    steps=2,
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A model of 5 million parameters, and a process that goes on afterwards."""

    def make_model(dtype: torch.dtype) -> Untyped:
        config = transformers.LlamaConfig(
            vocab_size=8192,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).to(dtype)

    monkeypatch.setattr(grpo_task, "make_model", make_model)
    monkeypatch.setattr("tunesmith_worker.rundir.process.keep_freed_memory", lambda: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_ours_is_faster_than_stock(tmp_path: Path) -> None:
    theirs, _ = grpo_side.stock(replace(TASK, side="stock"), tmp_path / "stock")
    ours, _ = grpo_side.ours(TASK, tmp_path / "ours")
    assert theirs.cpu[1] / ours.cpu[1] > 1.5
    assert len(ours.cpu) == len(theirs.cpu) == 2
    for meter in (theirs, ours):
        parts = ("generate", "score", "forward", "backward", "other")
        assert sum(meter.phases[1][one] for one in parts) == pytest.approx(meter.cpu[1])


def test_the_same_completions_have_the_same_loss_and_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        grpo_parity.compare(replace(TASK, prompt_tokens=8, steps=1), tmp_path)
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["loss_difference"] <= grpo.PARITY_BARS["loss_difference"]
    assert 0 < found["gradient_difference"] <= grpo.PARITY_BARS["gradient_difference"]


def test_lengths_are_even_or_log_uniform_and_differ_by_step() -> None:
    task = replace(TASK, new_tokens=128)
    assert replace(task, ragged=False).lengths(0) == [128] * 16
    assert 16 <= min(task.lengths(0)) < 40
    assert 80 < max(task.lengths(0)) <= 128
    assert task.lengths(0) != task.lengths(1)


def test_the_summary_is_of_pairs() -> None:
    given = Namespace(
        dtype="float32", tuning="lora", prompt_tokens=70, new_tokens=128, ragged=False,
        their_allocator=False,
    )  # fmt: skip
    phases = {"generate": 0.5, "forward": 0.25, "backward": 0.25}
    one = {
        "step_cpu_seconds": 1.0, "phases": phases, "generated_per_cpu_second": 4096.0,
        "peak_above_idle_mib": 50.0, "torch": "2",
        "beside_share": 0.01,
    }  # fmt: skip
    other = one | {"step_cpu_seconds": 3.0, "phases": phases | {"generate": 1.5}}
    other |= {"peak_above_idle_mib": 200.0}
    full = one | {"step_cpu_seconds": 1.5}
    slower = other | {"step_cpu_seconds": 2.0}
    found = grpo.summary(given, {}, [one, one], [other, slower], [full])
    assert (found["speed_ratio"], found["speed_bar"]) == (2.5, 2.3)
    assert (found["generation_ratio"], found["generation_bar"]) == (3.0, 2.4)
    assert (found["memory_ratio"], found["lora_over_full"]) == (0.25, 1.5)
    assert found["phases"]["theirs"]["generate"] == 1.5

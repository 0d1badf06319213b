"""Full tuning in bf16: whole runs, what they lose, what they keep, and what they say of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_events
from tunesmith_schema import EventKind
from tunesmith_worker.engine.optimizers import choose
from tunesmith_worker.engine.optimizers.split_master import SplitMasterAdamW
from tunesmith_worker.trainer.run import main

from .test_run import assert_no_pickles, probe_error

FULL: dict[str, Any] = {  # Any: JSON
    "tuning": "full",
    "max_steps": 40,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
}


def valid_loss(make_run: MakeRun, precision: str) -> float:
    recipe = {**FULL, "eval_steps": 40, "precision": precision}
    run = make_run(QUESTIONS, valid=QUESTIONS, recipe=recipe, name=precision)
    assert main(run) == 0
    return float(event_data(run, EventKind.METRICS)[-1]["valid_loss"])


def test_bf16_with_error_words_or_stochastic_rounding_ends_where_fp32_does(
    make_run: MakeRun,
) -> None:
    """And plain bf16 does not. The long form is benchmarks/precision.py."""
    exact = valid_loss(make_run, "fp32")
    assert valid_loss(make_run, "bf16_split_master") == pytest.approx(exact, rel=0.005)
    assert valid_loss(make_run, "bf16_sr8") == pytest.approx(exact, rel=0.01)
    assert valid_loss(make_run, "bf16") > 1.01 * exact


def test_c5_updates_that_plain_bf16_loses_are_told_and_alarmed(make_run: MakeRun) -> None:
    run = make_run(
        QUESTIONS,
        recipe={**FULL, "precision": "bf16", "learning_rate": 1e-5, "max_steps": 12},
    )
    assert main(run) == 0
    lost = [point["updates_lost_fraction"] for point in event_data(run, EventKind.METRICS)]
    assert len(lost) == 12
    assert all(fraction > 0.2 for fraction in lost)
    assert len(set(lost)) == 2, "counted at steps 1 and 11"
    warnings = [event.message for event in read_events(run) if event.level == "warn"]
    assert len(warnings) == 2
    assert warnings[0].startswith("Full tuning in bf16: weights and AdamW state take 6 bytes")
    assert "updates are rounded away" in warnings[1]
    assert "bf16_split_master" in warnings[1]


@pytest.mark.parametrize("precision", ["bf16_split_master", "bf16_sr8"])
def test_c5_ours_lose_none_at_the_same_rate(make_run: MakeRun, precision: str) -> None:
    recipe = {**FULL, "precision": precision, "learning_rate": 1e-5, "max_steps": 3}
    run = make_run(QUESTIONS, recipe=recipe)
    assert main(run) == 0
    lost = [point["updates_lost_fraction"] for point in event_data(run, EventKind.METRICS)]
    assert max(lost) < 1e-3
    assert not [event for event in read_events(run) if event.level == "warn"]


def test_c6_what_is_saved_is_the_fp32_master_rounded(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    masters: list[torch.Tensor] = []
    stock = choose.rounded_weights

    def watched(optimizer: Any) -> AbstractContextManager[None]:  # Any: transformers is untyped
        word = getattr(optimizer, "optimizer", optimizer)
        assert isinstance(word, SplitMasterAdamW)
        masters.extend(word.master(p) for group in word.param_groups for p in group["params"])
        return stock(optimizer)

    monkeypatch.setattr("tunesmith_worker.trainer.outputs.rounded_weights", watched)
    run = make_run(QUESTIONS, recipe={**FULL, "precision": "bf16_split_master", "max_steps": 5})
    assert main(run) == 0
    saved = list(load_file(run / "adapter" / "model.safetensors").values())
    assert len(saved) == len(masters) > 10
    assert any(not torch.equal(master, master.bfloat16().float()) for master in masters)
    left = list(saved)
    for master in masters:
        found = [i for i, one in enumerate(left) if torch.equal(one, master.bfloat16())]
        assert found, "a master whose rounding was not saved"
        left.pop(found[0])


@pytest.mark.parametrize("precision", ["bf16_split_master", "bf16_sr8", "bf16"])
def test_a_bf16_run_leaves_a_model_that_stock_transformers_loads(
    make_run: MakeRun, precision: str
) -> None:
    run = make_run(QUESTIONS, recipe={**FULL, "precision": precision, "max_steps": 3})
    assert main(run) == 0
    weights = load_file(run / "adapter" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    trained = transformers.AutoModelForCausalLM.from_pretrained(
        run / "adapter", dtype=torch.bfloat16
    )
    assert probe_error(trained, run / "adapter") <= 1e-5
    assert_no_pickles(run)


def test_a_run_says_what_its_precision_takes(make_run: MakeRun) -> None:
    run = make_run(QUESTIONS, recipe={**FULL, "precision": "bf16_sr8", "max_steps": 1})
    assert main(run) == 0
    said = [event.message for event in read_events(run)]
    assert (
        "Full tuning in bf16_sr8: weights and AdamW state take 4 bytes per parameter, "
        "the gradient takes 2" in said
    )


def test_two_runs_round_alike(make_run: MakeRun) -> None:
    files: list[Path] = []
    for name in ("one", "two"):
        recipe = {**FULL, "precision": "bf16_sr8", "max_steps": 4}
        run = make_run(QUESTIONS, recipe=recipe, name=name)
        assert main(run) == 0
        files.append(run / "adapter" / "model.safetensors")
    assert files[0].read_bytes() == files[1].read_bytes()

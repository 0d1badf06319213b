"""The first step of a supervised run is compared with plain torch: faults are named, good runs give
no alarm, and no bit of the run changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events, read_result
from tests.worker.trainer.selfcheck.planted import failure, trained
from tunesmith_schema import ErrorCode, EventKind

from . import faults
from .faults import Plant

FOUR: dict[str, Any] = {  # Any: JSON
    "max_steps": 2,
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "packing": False,
}
ROWS = [
    {**row, "answer": " and ".join([row["answer"]] * (1 + place * place % 7))}
    for place, row in enumerate(QUESTIONS)
]
"""Rows with different numbers of labels."""
FULL = {**FOUR, "tuning": "full", "lora": None}
CLIPPED = {**FOUR, "max_grad_norm": 0.01}

FAULTS: dict[str, tuple[Plant, dict[str, Any], str]] = {  # Any: JSON
    "normaliser": (
        faults.doubled_normaliser,
        FOUR,
        "first_step: wrong normaliser: the gradient is 0.5 times the correct gradient",
    ),
    "mean of means": (
        faults.mean_of_means,
        FOUR,
        "first_step: wrong normaliser: the loss of each micro-batch is divided by its own number "
        "of labels instead of the step's",
    ),
    "dropped micro-batch": (
        faults.dropped_micro_batch,
        FOUR,
        "first_step: 2 of the step's 8 rows",
    ),
    "lost gradient": (
        faults.lost_gradient,
        FOUR,
        "first_step: micro-batch 1 of 4 is missing in the gradient",
    ),
    "no clipping": (
        faults.no_clipping,
        CLIPPED,
        "clipping: the gradient is not clipped as the recipe requires",
    ),
    "small rate": (faults.small_rate, FOUR, "1000 times less, but the recipe's schedule gives"),
    "small updates": (faults.small_updates, FOUR, "is not AdamW's: the change of"),
    "no decay": (
        faults.no_decay,
        {**FULL, "weight_decay": 0.1},
        "is 0, but the recipe's is 0.1",
    ),
    "no warm-up": (
        faults.other_schedule,
        {**FOUR, "warmup_steps": 1},
        "but the recipe's schedule gives 0 ",
    ),
    "normaliser in bf16": (
        faults.doubled_normaliser,
        {**FOUR, "precision": "bf16"},
        "first_step: wrong normaliser: the gradient is 0.",
    ),
    "lost gradient in full tuning": (
        faults.lost_gradient,
        FULL,
        "first_step: micro-batch 1 of 4 is missing in the gradient",
    ),
    "normaliser with dropout": (
        faults.mean_of_means,
        {**FOUR, "lora": {"lora_dropout": 0.1}},
        "first_step: wrong normaliser: the loss of each micro-batch",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(make_run: MakeRun, name: str) -> None:
    plant, recipe, words = FAULTS[name]
    found = failure(make_run(ROWS, recipe=recipe), plant)
    assert found.code == ErrorCode.SELF_CHECK_FAILED
    assert found.message.startswith("Step 1: ")
    assert words in found.message
    assert found.hint


GOOD: dict[str, dict[str, Any]] = {  # Any: JSON
    "accumulation": FOUR,
    "packed": {**FOUR, "packing": True},
    "clipped": CLIPPED,
    "unclipped": {**FOUR, "max_grad_norm": 0},
    "dropout": {**FOUR, "lora": {"lora_dropout": 0.2}},
    "bf16": {**FOUR, "precision": "bf16"},
    "int8": {**FOUR, "quantization": "int8"},
    "stock": {**FOUR, "patches": "off"},
    "warm-up": {**FOUR, "warmup_steps": 1, "lr_scheduler_type": "cosine"},
    "full": {**FULL, "weight_decay": 0.1},
    "full-bf16": {**FULL, "precision": "bf16"},
    "full-split": {**FULL, "precision": "bf16_split_master", "weight_decay": 0.1},
    "full-sr8": {**FULL, "precision": "bf16_sr8"},
    "token-rows": {**FOUR, "add_tokens": ["<new>"]},
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_run_gives_no_alarm(make_run: MakeRun, name: str) -> None:
    run = make_run(ROWS, recipe=GOOD[name])
    trained(run, lambda trainer: None)
    assert read_result(run).error is None
    (detail,) = [d["first_step"] for d in event_data(run, EventKind.MESSAGE) if "first_step" in d]
    rows = 16 if name == "packed" else 8
    assert detail.startswith(f"all {rows} rows: loss, gradient norm and gradient equal plain torch")
    assert ("repetition of the step without dropout" in detail) == (name == "dropout")


@pytest.mark.parametrize(
    "recipe",
    [
        {**FOUR, "lora": {"lora_dropout": 0.1}},
        {**FOUR, "packing": True, "precision": "bf16"},
        {**FULL, "precision": "bf16_sr8"},
    ],
    ids=str,
)
def test_a_run_is_the_same_to_the_bit_without_it(make_run: MakeRun, recipe: dict[str, Any]) -> None:
    found = []
    for checked in (True, False):
        given = {**recipe, "max_steps": 3, "learning_rate": 1e-2, "self_check": checked}
        run = make_run(ROWS, recipe=given, name=f"checked-{checked}")
        trained(run, lambda trainer: None)
        told = [e for e in read_events(run) if e.message.startswith("first step:")]
        assert len(told) == checked
        saved = {path.name: path.read_bytes() for path in (run / "adapter").glob("*.safetensors")}
        points = event_data(run, EventKind.METRICS)
        accuracy = [point["train_mean_token_accuracy"] for point in points]
        norms = [point["grad_norm"] for point in points]
        found.append((losses(run), norms, accuracy, saved))
    assert found[0] == found[1]

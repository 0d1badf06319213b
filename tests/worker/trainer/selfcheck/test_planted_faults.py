"""Every fault that is planted is found before the first step, and named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, read_result
from tunesmith_schema import ErrorCode, EventKind
from tunesmith_worker.trainer.run import main

from . import faults
from .faults import Plant

OFF = {"patches": "off"}
BF16 = {"precision": "bf16"}
FULL = {"tuning": "full"}

FAULTS: dict[str, tuple[str, Plant, dict[str, Any]]] = {  # Any: JSON
    "masked labels": ("labels", faults.relabelled(faults.no_labels), {}),
    "labels one place off": ("labels", faults.relabelled(faults.labels_one_too_early), {}),
    "labels lost in a batch": ("labels", faults.laid_out(faults.lose_labels), {}),
    "wrong template": ("answers", faults.relabelled(faults.labels_of_the_prompt), {}),
    "eos never a label": ("end_token", faults.relabelled(faults.no_end_label), {}),
    "frozen adapter": ("trained_parameters", faults.after_attaching(faults.freeze), {}),
    "adapter off": ("trained_parameters", faults.after_attaching(faults.switch_off), {}),
    "adapter missing": ("trained_parameters", faults.after_attaching(faults.take_away), {}),
    "base trains": ("trained_parameters", faults.after_attaching(faults.train_a_base_weight), {}),
    "detached adapter": ("adapter_acts", faults.after_attaching(faults.bypass), OFF),
    "kernels without adapter": ("adapter_acts", faults.forget_the_adapter, {}),
    "adapter not neutral": (
        "fresh_adapter",
        faults.after_attaching(faults.scale_with_adapter),
        OFF,
    ),
    "lr 0": ("optimizer", faults.no_learning_rate, {}),
    "warm-up as long as the run": ("optimizer", lambda _: None, {"warmup_steps": 1}),
    "tensor not in the optimiser": ("optimizer", faults.forget_a_tensor, {}),
    "crossed rows": ("rows_apart", faults.laid_out(faults.one_segment), {}),
    "positions cross": ("rows_apart", faults.laid_out(faults.positions_cross), {}),
    "crossed rows in int8": (
        "rows_apart",
        faults.laid_out(faults.one_segment),
        {"quantization": "int8"},
    ),
    "crossed rows in bf16": ("rows_apart", faults.laid_out(faults.one_segment), BF16),
    **{
        f"{name} 1 % off in {way}{' in bf16' * bool(recipe)}": (
            "patched_equals_stock",
            faults.kernel(name, by),
            recipe,
        )
        for name in ("segment_attention", "lora_linear", "token_log_probs")
        for way, by in (("forward", faults.forward_off), ("backward", faults.backward_off))
        for recipe in (({}, BF16) if name == "segment_attention" else ({},))
    },
    "kernel 1 % off, all weights": (
        "patched_equals_stock",
        faults.kernel("segment_attention", faults.backward_off),
        FULL,
    ),
    "zero embedding row": ("embeddings", faults.zero_a_used_row, {}),
    "untied head": ("embeddings", faults.after_attaching(faults.untie), {}),
    "NaN weight": ("weights", faults.after_attaching(faults.put_a_nan), {}),
    "unwritable directory": ("checkpoint_directory", faults.not_writable, {}),
    "too little space": ("checkpoint_directory", faults.no_space, {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    check, plant, recipe = FAULTS[name]
    run = make_run(QUESTIONS, recipe={"max_steps": 1, **recipe})
    plant(monkeypatch)
    assert main(run) == 1
    error = read_result(run).error
    assert error is not None
    assert error.code == ErrorCode.SELF_CHECK_FAILED, error.message
    assert error.message.startswith(f"Self-check before the first step: {check}: "), error.message
    assert error.hint
    assert not event_data(run, EventKind.METRICS), "a step was taken"

"""Twenty optimiser steps of the whole engine, with our kernels and without: the same losses and the
same change of every weight. Stock pads its rows and ours stand end to end; which rows make up a
step is the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, losses, read_events
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

from .models import relative_rms

Rows = list[dict[str, Any]]  # Any: JSON

RAGGED: Rows = [
    {"question": f"How much is {n} plus {n * n}?", "answer": " It is" + " two plus" * (n % 7 + 1)}
    for n in range(40)
]
RECIPE = {
    "max_steps": 20,
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "warmup_steps": 2,
    "lr_scheduler_type": "cosine",
    "weight_decay": 0.01,
    "adapter_dtype": "fp32",
}
TUNINGS: dict[str, dict[str, Any]] = {
    "lora": {"tuning": "lora", "learning_rate": 1e-2},
    "full": {"tuning": "full", "learning_rate": 1e-3},
}

tunings = pytest.mark.parametrize("tuning", TUNINGS)


def _weights(run: Path) -> dict[str, Any]:  # Any: tensors
    (file,) = (path for path in (run / "adapter").glob("*model.safetensors"))
    weights: dict[str, Any] = load_file(file)
    return weights


def _check(make_run: MakeRun, rows: Rows, recipe: dict[str, Any], **spec: Any) -> None:
    """Any: JSON, and fields of the run's specification."""
    runs = {}
    # Leaves what it began with; the self-check would refuse such a rate.
    still = {"max_steps": 1, "learning_rate": 1e-30, "patches": "off", "self_check": False}
    changes: dict[str, dict[str, Any]] = {
        "start": still, "stock": {"patches": "off"}, "ours": {"patches": "auto"},
    }  # fmt: skip
    for name, change in changes.items():
        runs[name] = make_run(rows, recipe=recipe | change, name=name, **spec)
        assert main(runs[name]) == 0

    layers = _layers(spec.get("model_path"))
    expected = f"patched {layers} x attention_block, 1 x loss, {layers} x mlp_block"
    (patched,) = [e.message for e in read_events(runs["ours"]) if e.message.startswith("patched")]
    assert patched in (expected, f"{expected}, 1 x token_rows")  # stories260K never saw a "×"
    assert not [e for e in read_events(runs["stock"]) if e.message.startswith("patched")]

    stock, ours = losses(runs["stock"]), losses(runs["ours"])
    assert len(stock) == 20
    assert stock[-1] < 0.99 * stock[0]
    assert ours == pytest.approx(stock, rel=1e-6)
    tokens = [event_data(runs[n], EventKind.METRICS)[-1]["trained_tokens"] for n in changes]
    assert tokens[1] == tokens[2]

    start, trained, same = (_weights(runs[name]) for name in ("start", "stock", "ours"))
    assert start.keys() == trained.keys() == same.keys()
    for name, tensor in trained.items():
        change = (tensor - start[name]).double()
        if name in start and not change.any():
            assert not (same[name] - start[name]).any(), name
            continue
        assert relative_rms((same[name] - start[name]).double(), change) <= 1e-4, name


def _layers(model_path: str | None) -> int:
    if model_path is None:
        return 2
    config = json.loads((Path(model_path) / "config.json").read_text(encoding="utf-8"))
    return int(config["num_hidden_layers"])


@tunings
def test_the_tiny_model(make_run: MakeRun, tuning: str) -> None:
    _check(make_run, RAGGED, RECIPE | TUNINGS[tuning])


def test_the_tiny_model_with_dropout_and_checkpointing(make_run: MakeRun) -> None:
    """Rows without padding draw other masks: one row a batch has none on either side."""
    recipe = RECIPE | TUNINGS["lora"] | {
        "per_device_train_batch_size": 1, "gradient_checkpointing": True,
        "lora": {"r": 4, "lora_dropout": 0.2, "use_rslora": True},
    }  # fmt: skip
    _check(make_run, RAGGED, recipe)


def test_the_tiny_model_with_packing(make_run: MakeRun) -> None:
    _check(
        make_run,
        RAGGED * 8,
        RECIPE | TUNINGS["lora"] | {"packing": True, "max_seq_length": 128},
    )


@pytest.mark.slow
@pytest.mark.parametrize(("model", "tuning"), [("tiny-math", "lora"), ("stories260K", "full")])
def test_real_models_on_real_rows(
    make_run: MakeRun, shared_data: Path, model: str, tuning: str
) -> None:
    lines = (shared_data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines[:80]]
    rates = {"lora": 1e-3, "full": 1e-4}
    recipe = RECIPE | {
        "tuning": tuning,
        "learning_rate": rates[tuning],
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 1,
    }
    _check(make_run, rows, recipe, model_path=str(shared_data / "models" / model))

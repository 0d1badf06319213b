"""E1: the bytes of an adapter are known before the first step, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, event_data, losses, read_events
from tunesmith_schema import EventKind, LoraRecipe, Recipe
from tunesmith_worker.engine.model.adapters import adapter_tensors, attach_lora, predict_bytes
from tunesmith_worker.rundir.plan import Choices
from tunesmith_worker.trainer.run import main

from .conftest import assert_gives_the_probe
from .eight_billion import eight_billion

FAST: dict[str, Any] = {  # Any: JSON
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
}


def test_e1_rank_16_on_all_linear_layers_of_an_8b_model_is_84_mb(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = attach_lora(eight_billion(), Recipe(lora=LoraRecipe(r=16)), Choices())
    tensors = adapter_tensors(model)
    assert sum(tensor.numel() for tensor in tensors.values()) == 41_943_040
    predicted = predict_bytes(model, torch.bfloat16)
    assert predicted <= 90e6
    file = tmp_path / "adapter_model.safetensors"
    zeros = {name: torch.zeros(t.shape, dtype=torch.bfloat16) for name, t in tensors.items()}
    save_file(zeros, file, metadata={"format": "pt"})
    assert file.stat().st_size == predicted


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_choice_before_training_is_the_size_of_the_file(make_run: MakeRun, dtype: str) -> None:
    recipe = FAST | {"adapter_dtype": dtype, "lora": {"r": 3, "bias": "all", "use_rslora": True}}
    run = make_run(QUESTIONS, recipe=recipe)
    assert main(run) == 0
    size = (run / "adapter" / "adapter_model.safetensors").stat().st_size
    (choice,) = [c for c in event_data(run, EventKind.CHOICE) if c["name"] == "adapter_bytes"]
    assert choice["value"] == size
    (said,) = [event for event in read_events(run) if "adapter_bytes" in event.data]
    assert said.data["adapter_bytes"] == size
    assert f"{size:,} bytes" in said.message


def test_an_adapter_is_saved_in_bf16_and_its_probe_is_of_what_was_saved(
    make_run: MakeRun, tiny_model: Path
) -> None:
    runs = {}
    for dtype in ("bf16", "fp32"):
        recipe = FAST | ({} if dtype == "bf16" else {"adapter_dtype": dtype})
        runs[dtype] = make_run(QUESTIONS, recipe=recipe, name=dtype)
        assert main(runs[dtype]) == 0
        adapter = runs[dtype] / "adapter"
        base = transformers.AutoModelForCausalLM.from_pretrained(tiny_model)
        assert_gives_the_probe(peft.PeftModel.from_pretrained(base, adapter).eval(), adapter)
    assert losses(runs["bf16"]) == losses(runs["fp32"])  # it trains in fp32 either way
    few, many = (load_file(runs[one] / "adapter" / "adapter_model.safetensors") for one in runs)
    for name, weight in many.items():
        assert torch.equal(few[name], weight.bfloat16())
    probes = [load_file(runs[one] / "adapter" / "probe.safetensors")["logits"] for one in runs]
    lost = float((probes[0] - probes[1]).abs().max())
    for dtype, expected in (("bf16", lost), ("fp32", 0.0)):
        (said,) = [e for e in read_events(runs[dtype]) if "logit_rounding" in e.data]
        assert said.data["logit_rounding"] == pytest.approx(expected, rel=1e-6)
    assert 0 < lost < 1e-2

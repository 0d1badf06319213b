"""A base model in 4 or 8 bits under LoRA, trained as users do, in a process of its own: peft knows
bitsandbytes only where a quantised recipe let it be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ..tiny_model import make_tiny_model
from .conftest import MakeRun
from .runs import QUESTIONS, losses, read_events, read_result

RECIPE: dict[str, Any] = {  # Any: JSON
    "max_steps": 3,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "precision": "fp32",
    "adapter_dtype": "fp32",  # the probe is of the adapter that was trained, not rounded
}
TRAIN = """
import sys
from pathlib import Path
from tunesmith_worker.run import main
for folder in sys.argv[1:]:
    main(Path(folder))
"""
PROBE = """
import peft, torch, transformers
from safetensors.torch import load_file
run = Path(sys.argv[1])
four = transformers.BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32)
model = transformers.AutoModelForCausalLM.from_pretrained(
    run.parent / "base", quantization_config=four, dtype=torch.float32)
for module in model.modules():
    module.support_avx512bf16_for_cpu = False
model = peft.PeftModel.from_pretrained(model, run / "adapter").eval()
probe = load_file(run / "adapter" / "probe.safetensors")
with torch.no_grad():
    logits = model(input_ids=probe["input_ids"]).logits[:, -probe["logits"].shape[1]:]
print(float((logits - probe["logits"]).abs().max()))
"""


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 64 and 128, as bitsandbytes needs them on a CPU."""
    return make_tiny_model(
        tmp_path_factory.mktemp("wide") / "model", hidden_size=64, intermediate_size=128
    )


def python(code: str, *runs: Path) -> str:
    """What it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, runs)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "float16" not in done.stderr, "bitsandbytes' remarks, at each layer and step"
    return done.stdout


def patched(run: Path) -> str:
    return next(e.message for e in read_events(run) if e.message.startswith("patched"))


def test_nf4_trains_by_our_kernels_as_by_the_stock_trainer(
    make_run: MakeRun, wide_model: Path, tmp_path: Path
) -> None:
    runs = {}
    for patches in ("auto", "off"):
        recipe = {**RECIPE, "quantization": "nf4", "patches": patches}
        runs[patches] = make_run(QUESTIONS, recipe=recipe, name=patches, model_path=str(wide_model))
    (tmp_path / "base").symlink_to(wide_model)
    error = python(TRAIN + PROBE, *runs.values())
    assert float(error) <= 1e-5, "stock PEFT on stock bitsandbytes gives the probe's logits"
    assert patched(runs["auto"]) == "patched 2 x attention_block, 1 x loss, 2 x mlp_block"
    assert losses(runs["auto"]) == pytest.approx(losses(runs["off"]), rel=1e-5)
    adapter = runs["auto"] / "adapter"
    weights = load_file(adapter / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name)


def test_int8_stays_stock_by_name_and_what_bitsandbytes_reads_wrongly_is_refused(
    make_run: MakeRun, wide_model: Path
) -> None:
    eight = {**RECIPE, "quantization": "int8"}
    run = make_run(QUESTIONS, recipe=eight, model_path=str(wide_model))
    narrow = make_run(QUESTIONS, recipe={**RECIPE, "quantization": "nf4"}, name="narrow")
    python(TRAIN, run, narrow)
    assert read_result(run).outcome == "succeeded"
    assert "2 x attention_block stay stock: Linear8bitLt is not a plain linear" in patched(run)
    assert losses(run)[-1] < losses(run)[0]
    error = read_result(narrow).error
    assert error is not None
    assert error.param == "recipe.quantization"
    assert "q_proj has 48 inputs" in error.message

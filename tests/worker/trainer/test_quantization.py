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

from tests.tiny_model import make_tiny_model
from tests.worker.conftest import MakeRun
from tests.worker.runs import QUESTIONS, losses, read_events, read_result
from tunesmith_schema.verification import Verification

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
from tunesmith_worker.trainer.run import main
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
from tunesmith_worker.engine.verify.__main__ import verify
for folder in (sys.argv[1], sys.argv[3]):
    verify(Path(folder) / "adapter", str(run.parent / "base"))
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


def test_a_quantised_base_is_trained_or_refused(
    make_run: MakeRun, wide_model: Path, tmp_path: Path
) -> None:
    """All in one process: importing what they need takes longer than the runs."""

    def made(name: str, **recipe: Any) -> Path:
        return make_run(QUESTIONS, recipe=RECIPE | recipe, name=name, model_path=str(wide_model))

    ours = made("ours", quantization="nf4")
    stock = made("stock", quantization="nf4", patches="off")
    eight = made("eight", quantization="int8")
    narrow = make_run(QUESTIONS, recipe={**RECIPE, "quantization": "nf4"}, name="narrow")
    (tmp_path / "base").symlink_to(wide_model)
    error = python(TRAIN + PROBE, ours, stock, eight, narrow)
    assert float(error) <= 1e-5, "stock PEFT on stock bitsandbytes gives the probe's logits"
    for run in (ours, stock, eight):
        content = (run / "adapter" / "verification.json").read_bytes()
        verification = Verification.model_validate_json(content)
        assert verification.quantization == ("int8" if run == eight else "nf4")
        assert verification.max_difference <= verification.tolerance / 10
    assert_nf4_trains_by_our_kernels_as_by_the_stock_trainer(ours, stock)
    assert_int8_stays_stock_by_name_and_learns(eight)
    assert_what_bitsandbytes_reads_wrongly_is_refused(narrow)


def assert_nf4_trains_by_our_kernels_as_by_the_stock_trainer(ours: Path, stock: Path) -> None:
    assert patched(ours) == "patched 2 x attention_block, 1 x loss, 2 x mlp_block"
    assert losses(ours) == pytest.approx(losses(stock), rel=1e-5)
    weights = load_file(ours / "adapter" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name)


def assert_int8_stays_stock_by_name_and_learns(run: Path) -> None:
    assert read_result(run).outcome == "succeeded"
    assert "2 x attention_block (Linear8bitLt is not a plain linear" in patched(run)
    assert losses(run)[-1] < losses(run)[0]


def assert_what_bitsandbytes_reads_wrongly_is_refused(run: Path) -> None:
    error = read_result(run).error
    assert error is not None
    assert error.param == "recipe.quantization"
    assert "q_proj has 48 inputs" in error.message

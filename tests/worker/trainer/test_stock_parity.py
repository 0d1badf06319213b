"""The loss is stock TRL's, step by step, on the same rows; and what of TRL's we lean on."""

from __future__ import annotations

import inspect
from pathlib import Path

import peft
import pytest
import transformers
import trl
from datasets import Dataset

from tests.worker.conftest import MakeRun
from tests.worker.runs import losses
from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE
from tunesmith_worker.trainer.run import main

ROWS = [{"prompt": f"How much is {n}?", "completion": " It is" + " five" * n} for n in range(1, 9)]


def test_losses_equal_stock_trl_on_the_same_rows(
    make_run: MakeRun, tiny_model: Path, tmp_path: Path
) -> None:
    recipe = {
        "max_steps": 6,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "warmup_steps": 1,
    }
    run = make_run(ROWS, recipe=recipe)
    assert main(run) == 0

    config = trl.SFTConfig(
        output_dir=str(tmp_path / "stock"),
        max_steps=6,
        learning_rate=1e-2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        warmup_steps=1,
        lr_scheduler_type="linear",
        logging_steps=1,
        save_strategy="no",
        seed=7,
        data_seed=7,
        bf16=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to="none",
        disable_tqdm=True,
        **{RECOMPUTE: False},
    )
    lora = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=32,
        lora_alpha=16,
        target_modules=[
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ],
    )
    stock = trl.SFTTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(tiny_model),
        args=config,
        train_dataset=Dataset.from_list(ROWS),
        processing_class=transformers.AutoTokenizer.from_pretrained(tiny_model),
        peft_config=lora,
    )
    stock.train()
    expected = [point["loss"] for point in stock.state.log_history if "loss" in point]
    assert len(expected) == 6
    assert losses(run) == pytest.approx(expected, rel=1e-6)
    assert losses(run)[-1] < losses(run)[0]


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("_save_checkpoint", ["self", "model", "trial"]),
        ("log", ["self", "logs", "start_time"]),
        (
            "compute_loss",
            ["self", "model", "inputs", "return_outputs", "num_items_in_batch"],
        ),
    ],
)
def test_trl_still_has_what_we_override(method: str, parameters: list[str]) -> None:
    """If this fails, look at trainer/methods/sft.py: TRL changed a method that it overrides."""
    assert list(inspect.signature(getattr(trl.SFTTrainer, method)).parameters) == parameters

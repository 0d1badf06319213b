"""Train one small model with our trainer and with stock TRL, in this process."""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl
from datasets import Dataset
from trl.trainer.utils import FusedCausalLMOutput

from tunesmith_schema import Recipe, RunEvent, RunResult, RunSpec
from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE
from tunesmith_worker.trainer.run import main

Untyped = Any  # Any: transformers and TRL are not typed

SEED, STEPS, ROWS, RATE = 7, 2, 2, 1e-3
DATA = [
    {"prompt": f"How much is {n} plus {n}?", "completion": " It is" + f" {n} and" * (1 + n % 3)}
    for n in range(1, 7)
]
REWARD = {"type": "length", "unit": "characters", "target": 4, "limit": 40}
"""Reward that differs between the completions of a random model."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Result of one run of our trainer."""

    losses: list[float]
    patched: str
    """Summary of the patched modules."""
    own_logits: bool
    """True if the loss uses the logits of the model's own forward pass."""
    adapter: Path | None
    """Folder of the saved adapter; None with full tuning."""
    error: Untyped = None
    """`JobFailure` of a run that failed."""


def train_ours(folder: Path, model: Path, method: str) -> Trained:
    """Train `model` in a new run directory `folder`. `method`: "lora", "full" or "grpo"."""
    (folder / "data").mkdir(parents=True)
    grpo = method == "grpo"
    rows = [{"prompt": row["prompt"], "answer": "4"} for row in DATA] if grpo else DATA
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "data" / "train.jsonl").write_text("".join(lines))
    recipe: dict[str, Untyped] = {
        "tuning": "full" if method == "full" else "lora",
        "max_steps": STEPS,
        "learning_rate": RATE,
        "warmup_steps": 0,
        "logging_steps": 1,
    }
    if not grpo:
        recipe |= {"per_device_train_batch_size": ROWS, "gradient_accumulation_steps": 1}
    if grpo:
        recipe["grpo"] = {
            "num_generations": 3,
            "prompts_per_step": 2,
            "max_completion_length": 8,
        }
    spec: dict[str, Untyped] = {
        "job_id": "ftjob-1",
        "attempt": 1,
        "model": model.name,
        "model_path": str(model),
        "training_file": "data/train.jsonl",
        "seed": SEED,
        "recipe": Recipe.model_validate(recipe),
    }
    if grpo:
        spec |= {"method": "reinforcement", "grader": REWARD}
    (folder / "spec.json").write_text(RunSpec(**spec).model_dump_json())
    main(folder)
    result = RunResult.model_validate_json((folder / "result.json").read_bytes())
    text = (folder / "events.jsonl").read_text(encoding="utf-8") if result else ""
    events = [RunEvent.model_validate_json(line) for line in text.splitlines()]
    losses = [event.data["train_loss"] for event in events if "train_loss" in event.data]
    return Trained(
        losses=[float(str(loss)) for loss in losses],
        patched=next((e.message for e in events if e.message.startswith("patched ")), ""),
        own_logits=any(e.message.startswith("The loss uses the logits") for e in events),
        adapter=folder / "adapter" if method == "lora" else None,
        error=result.error,
    )


def train_stock(
    folder: Path, model: Path, adapter: Path | None, *, own_logits: bool = False
) -> list[float]:
    """Train `model` with TRL and return the loss of each step. `adapter` is the folder of a LoRA
    adapter with the configuration for this training; None means full tuning.

    With `own_logits`, torch's cross entropy computes the loss from the logits of the model's own
    forward pass. Without `own_logits`, TRL's fused head computes the loss."""
    transformers.set_seed(SEED)
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        lora = peft.LoraConfig.from_pretrained(adapter)
        lora.inference_mode = False
        base = peft.get_peft_model(base, lora)
    trainer = trl.SFTTrainer(
        model=base,
        args=trl.SFTConfig(
            output_dir=str(folder),
            max_steps=STEPS,
            learning_rate=RATE,
            per_device_train_batch_size=ROWS,
            lr_scheduler_type="linear",
            logging_steps=1,
            save_strategy="no",
            seed=SEED,
            data_seed=SEED,
            bf16=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            **{RECOMPUTE: False},
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(DATA),
        processing_class=transformers.AutoTokenizer.from_pretrained(model),
    )
    if own_logits:
        score_own_logits(base.get_base_model() if adapter is not None else base)
    trainer.train()
    return [float(point["loss"]) for point in trainer.state.log_history if "loss" in point]


def score_own_logits(causal: Untyped) -> None:
    def forward(
        this: Untyped,
        *args: Untyped,
        labels: torch.Tensor,
        fused_lm_head: bool = True,
        num_items_in_batch: Untyped = None,
        **kwargs: Untyped,
    ) -> Untyped:
        output = type(this).forward(this, *args, **kwargs)
        logits = output.logits[:, :-1].transpose(1, 2)
        losses = torch.nn.functional.cross_entropy(logits, labels[:, 1:], reduction="none")
        mask = labels[:, 1:] != -100
        zero = torch.zeros_like(losses)
        aux_loss = getattr(output, "aux_loss", None)  # of a mixture of experts
        return FusedCausalLMOutput(
            log_probs=-losses,
            entropy=zero,
            is_top1=zero,
            label_mask=mask,
            aux_loss=losses.new_zeros(()) if aux_loss is None else aux_loss,
        )

    causal.forward = types.MethodType(forward, causal)


def build(folder: Path, config: Untyped, tokenizer: Untyped) -> None:
    """Save a random model of this configuration with a tokenizer."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for parameter in model.parameters():
            if not parameter.any():  # zeros would stop gradients, which released weights do not
                parameter.normal_(std=0.02)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].normal_(std=0.02)  # a row of zeros is untrained
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)

"""Compared trainers: ours, stock TRL with PEFT, TRL with Liger's layers, and Unsloth.

Each trainer is set up as its documentation describes, on a model with random bf16 weights and LoRA
r 16 on all linear layers. In the setting "no-recompute", a micro-batch is one row of 4,096 tokens,
and no trainer recomputes activations. In the setting "defaults", a step has rows of mixed lengths
with about 4,096 tokens in total, and each trainer keeps its defaults (TRL: padded rows,
recomputation).
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunesmith_worker.rundir.process import quick_imports

with quick_imports():
    import datasets
    import peft
    import torch
    import transformers
    import trl

    from tunesmith_schema import PROJECTIONS, Hyperparameters, LoraRecipe, Recipe
    from tunesmith_worker.engine.model.adapters import attach_lora
    from tunesmith_worker.engine.model.base_model import find_device
    from tunesmith_worker.engine.patches import patch, stock_attention_reason
    from tunesmith_worker.engine.patches.trl_compat import RECOMPUTE
    from tunesmith_worker.rundir.events import EventLog
    from tunesmith_worker.rundir.plan import Choices
    from tunesmith_worker.trainer.auto.layout_choice import plan_layouts
    from tunesmith_worker.trainer.auto.layouts import Layouts
    from tunesmith_worker.trainer.auto.memory_plan import MemoryPlan
    from tunesmith_worker.trainer.auto.resolve_sft import plan_load, plan_patches, plan_train
    from tunesmith_worker.trainer.methods.config import sft_config
    from tunesmith_worker.trainer.methods.sft import SFTTrainer

    from .models import random_model

Untyped = Any  # Any: transformers, PEFT, TRL and Unsloth are not typed

SEED = 42  # TRL's default seed, so that all sides train the same rows in the same order
RANK, ALPHA = 16, 16


@dataclass(frozen=True, kw_only=True)
class Task:
    model: str
    setting: str
    steps: int
    folder: Path

    @property
    def tiny(self) -> bool:
        return self.model.startswith("tiny")

    @property
    def whole(self) -> bool:
        return self.setting == "no-recompute"

    @property
    def length(self) -> int:
        """Row length in the setting "no-recompute"."""
        return 64 if self.tiny else 4096

    @property
    def rows_per_step(self) -> int:
        """Rows per step. The 12 rows of a step have 4,150 tokens in total, on average."""
        return 1 if self.whole else 12

    def dataset(self, vocabulary: int) -> Untyped:
        """Make random rows. Mixed row lengths are log-uniform."""
        draw = random.Random(0)
        low, high = (4, 64) if self.tiny else (64, 1024)

        def length() -> int:
            if self.whole:
                return self.length
            return round(math.exp(draw.uniform(math.log(low), math.log(high))))

        count = self.rows_per_step * (self.steps + 1)
        rows = [[draw.randrange(vocabulary) for _ in range(length())] for _ in range(count)]
        return datasets.Dataset.from_dict({"input_ids": rows, "labels": rows})


@dataclass(frozen=True, kw_only=True)
class BuiltTrainer:
    """One of the compared trainers, and notes for the results."""

    trainer: Untyped
    model: Untyped
    notes: dict[str, Untyped]


def ours(task: Task) -> BuiltTrainer:
    """Make our trainer in the same way as tunesmith_worker.trainer.run."""
    device, choices = find_device(), Choices()
    recipe = Recipe(
        lora=LoraRecipe(r=RANK, lora_alpha=ALPHA),
        gradient_checkpointing=False if task.whole else "auto",
        precision="bf16",
        per_device_train_batch_size=task.rows_per_step,
        gradient_accumulation_steps=1,
        max_steps=task.steps,
        logging_steps=10 if task.whole else Recipe().logging_steps,
    )
    load = plan_load(recipe, device, choices)
    base = random_model(task.model, torch_device(), torch.bfloat16)
    model = attach_lora(base, recipe, choices)
    patches = plan_patches(recipe, choices)
    rows = task.dataset(base.config.vocab_size)
    train = plan_train(
        recipe,
        Hyperparameters(),
        rows=len(rows),
        sequences=len(rows),
        has_validation=False,
        choices=choices,
    )
    layout = plan_layouts(
        recipe,
        stock_attention_reason(base),
        patched=bool(patches - {"loss"}),
        lengths=[len(ids) for ids in rows["input_ids"]],
        rows=train.per_device_train_batch_size,
        passes=train.gradient_accumulation_steps,
        total_steps=train.total_steps,
        parameters=base.num_parameters(),
        device=device,
    )
    layouts = Layouts(layout, choices)
    trainer = SFTTrainer(
        model=model,
        args=sft_config(task.folder, train, seed=SEED),
        train_dataset=rows,
        processing_class=tokenizer(),
        save=lambda step: None,
        layouts=layouts,
    )
    patched = patch(model, patches).report
    memory = MemoryPlan(
        trainer,
        layouts,
        patched,
        checkpointing=recipe.gradient_checkpointing,
        may_split=False,
        full=False,
        precision=load.precision,
        choices=choices,
        events=EventLog(task.folder / "events.jsonl"),
        write=lambda: None,
    )
    memory.resolve()
    return BuiltTrainer(
        trainer=trainer,
        model=model,
        notes={
            "patched": patched.summary(),
            "recompute": memory.recomputes,
            "layout": layouts.chosen.kind,
        },
    )


def stock(task: Task, *, liger: bool = False) -> BuiltTrainer:
    """Make TRL's trainer with PEFT's adapters. Settings that are not in `task` keep TRL's
    defaults."""
    base = random_model(task.model, torch_device(), torch.bfloat16)
    model = peft.get_peft_model(base, lora_config())
    args = trl.SFTConfig(
        **_usual(task),
        use_cpu=not torch.cuda.is_available(),
        use_liger_kernel=liger,
        **({RECOMPUTE: False} if task.whole else {}),
    )
    trainer = trl.SFTTrainer(
        model=model,
        args=args,
        train_dataset=task.dataset(base.config.vocab_size),
        processing_class=tokenizer(),
    )
    return BuiltTrainer(trainer=trainer, model=model, notes={"recompute": getattr(args, RECOMPUTE)})


def liger(task: Task) -> BuiltTrainer:
    return stock(task, liger=True)


def unsloth(task: Task) -> BuiltTrainer:
    """Make Unsloth's trainer with Unsloth's documented functions, which load a saved model. By
    default, Unsloth uses its own recomputation ("unsloth")."""
    from unsloth import FastLanguageModel  # type: ignore[import-not-found, unused-ignore]  # optional

    with tempfile.TemporaryDirectory() as folder:
        random_model(task.model, torch_device(), torch.bfloat16).save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        torch.cuda.empty_cache()
        model, _ = FastLanguageModel.from_pretrained(
            folder, max_seq_length=task.length, dtype=torch.bfloat16, load_in_4bit=False
        )
    recompute = False if task.whole else "unsloth"
    model = FastLanguageModel.get_peft_model(
        model,
        r=RANK,
        lora_alpha=ALPHA,
        target_modules=list(PROJECTIONS),
        use_gradient_checkpointing=recompute,
    )
    args = trl.SFTConfig(
        **_usual(task),
        bf16=True,
    )
    rows = task.dataset(model.config.vocab_size)
    trainer = trl.SFTTrainer(
        model=model, args=args, train_dataset=rows, processing_class=tokenizer()
    )
    return BuiltTrainer(trainer=trainer, model=model, notes={"recompute": recompute})


def _usual(task: Task) -> dict[str, Untyped]:
    return {
        "output_dir": str(task.folder),
        "per_device_train_batch_size": task.rows_per_step,
        "max_steps": task.steps,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": SEED,
    }


SIDES: dict[str, Callable[[Task], BuiltTrainer]] = {
    "ours": ours,
    "stock": stock,
    "liger": liger,
    "unsloth": unsloth,
}


def lora_config() -> Untyped:
    return peft.LoraConfig(
        task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules=list(PROJECTIONS)
    )


def torch_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def tokenizer() -> Untyped:
    """Placeholder tokenizer, because the rows already contain token ids."""
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({str(i): i for i in range(16)}, unk_token="0"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="0", eos_token="1"
    )

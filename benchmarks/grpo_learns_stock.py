"""Train with stock TRL for grpo_learns.py, in a separate process. Prints one JSON line.

Model, adapter, data, seed and learning rate are the same as in our job. TRL samples the
completions. The reward function is equivalent to the job's grader. The mean reward of each step
goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import peft
import torch
import transformers
import trl

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.grpo_learns import COMPLETION_TOKENS, GROUP, MODEL, PROMPTS, RANK, RATE, TRAIN
from benchmarks.sft_side import PROJECTIONS, RECOMPUTE
from tunesmith_schema import LoraRecipe
from tunesmith_worker.trainer.rewards.math_answer import equal_numbers, find_answer

Untyped = Any  # Any: transformers, PEFT and TRL are not typed


def right(completions: Sequence[Untyped], answer: Sequence[str], **_: object) -> list[float]:
    """Compute the same rewards as the grader `math_answer` with reference `{{item.answer}}`."""
    rewards = []
    for (message,), expected in zip(completions, answer, strict=True):
        number, reference = find_answer(message["content"]), find_answer(expected)
        assert reference is not None, "every row has an answer"
        rewards.append(float(number is not None and equal_numbers(number, reference, 1e-6)))
    return rewards


class Watch(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Record and print the mean reward of each step. Each printed line also has the CPU-seconds
    since the start."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.cpu = time.process_time()

    def on_log(self, *_: Untyped, logs: Untyped = None, **__: Untyped) -> None:
        if "reward" in logs:
            self.rewards.append(float(logs["reward"]))
            spent = time.process_time() - self.cpu
            sys.stderr.write(f"{len(self.rewards)} {self.rewards[-1]:.4f} {spent:.1f} CPU-s\n")
            sys.stderr.flush()


def train(seed: int, steps: int, folder: Path) -> Watch:
    rows = [json.loads(line) for line in TRAIN.read_text(encoding="utf-8").splitlines()]
    prompts = [
        {"prompt": [{"role": "user", "content": row["question"]}], "answer": row["answer"]}
        for row in rows
    ]
    shape = LoraRecipe(r=RANK)
    trainer = trl.GRPOTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32),
        reward_funcs=right,
        args=trl.GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=PROMPTS * GROUP,
            gradient_accumulation_steps=1,
            steps_per_generation=1,
            num_generations=GROUP,
            max_completion_length=COMPLETION_TOKENS,
            max_steps=steps,
            **{RECOMPUTE: False},
            learning_rate=RATE,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            bf16=False,
            use_cpu=True,
            dataloader_pin_memory=False,
            seed=seed,
        ),
        train_dataset=datasets.Dataset.from_list(prompts),
        processing_class=transformers.AutoTokenizer.from_pretrained(MODEL),
        peft_config=peft.LoraConfig(
            task_type="CAUSAL_LM",
            r=shape.r,
            lora_alpha=shape.lora_alpha,
            target_modules=PROJECTIONS,
        ),
    )
    watch = Watch()
    trainer.add_callback(watch)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return watch


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--side", choices=["stock"], required=True)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--steps", type=int, required=True)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        watch = train(options.seed, options.steps, Path(folder))
    spent = time.process_time() - watch.cpu
    print(json.dumps({"rewards": watch.rewards, "cpu_seconds": round(spent, 1)}))


if __name__ == "__main__":
    main()

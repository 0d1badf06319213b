"""Compare the automatic layout with every fixed layout, by row length, batch size and model.

    python -m benchmarks.layouts [--model small --lengths even-64 --rows 16]

In each case, the rule of `packing: auto` chooses the layout of a run of 200 steps. Then each case
measures the CPU-seconds of forward and backward under every layout. The layouts alternate in one
process with one thread. Prints one JSON line per case. `slower`: extra time of the chosen layout
relative to the fastest layout (limit 5 %). `cost`: time that the rule takes, relative to the time
of 200 steps (limit 2 %). Writes benchmarks/results/layouts.json if all cases were measured.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
import trl

from tunesmith_schema import Recipe
from tunesmith_worker.engine.patches import patch
from tunesmith_worker.rundir.plan import Device
from tunesmith_worker.rundir.process import keep_freed_memory
from tunesmith_worker.trainer.auto.layout_choice import LayoutPlan, plan_layouts
from tunesmith_worker.trainer.methods.batches import Batch, collate, split

from .service_parts.machine import cpu_model
from .sft_side import PROJECTIONS, make_model

STEPS = 200
VOCABULARY = 2048
LENGTHS = {
    "even-16": (16, 16),
    "even-64": (64, 64),
    "even-512": (512, 512),
    "near-48-80": (48, 80),
    "ragged-8-128": (8, 128),
    "ragged-32-768": (32, 768),
}
"""Shortest and longest row in tokens; row lengths are log-uniform."""
MODELS = {"tiny": (4, 16), "small": (4, 16), "12m": (4,)}
"""Measured numbers of rows per step, by model size."""
SLOWER, COST = 0.05, 0.02
CPU = Device(name="cpu", is_gpu=False, has_bf16=False)


def model_of(size: str) -> Any:  # Any: transformers is untyped
    if size == "12m":
        base = make_model(torch.float32)
    else:
        hidden, layers = {"tiny": (64, 2), "small": (192, 4)}[size]
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=hidden * 8 // 3,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
        base = transformers.LlamaForCausalLM(config)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=PROJECTIONS)
    model = peft.get_peft_model(base, lora)
    trl.trainer.utils.add_fused_lm_head(base, outputs=("log_probs", "entropy", "is_top1"))
    patch(model)
    return model.train()


class Cell:
    def __init__(self, size: str, lengths: str, rows: int) -> None:
        torch.manual_seed(0)
        self._draw = random.Random(0)
        self._low, self._high = LENGTHS[lengths]
        self._rows, self._model = rows, model_of(size)
        began = time.thread_time()
        self.plan: LayoutPlan = plan_layouts(
            Recipe(),
            None,
            patched=True,
            lengths=[self._length() for _ in range(2000)],
            rows=min(8, rows),
            passes=max(1, rows // 8),
            total_steps=STEPS,
            parameters=self._model.base_model.model.num_parameters(),
            device=CPU,
        )
        self.rule_seconds = time.thread_time() - began

    def step(self) -> Batch:
        rows = [
            [self._draw.randrange(VOCABULARY) for _ in range(self._length())]
            for _ in range(self._rows)
        ]
        return collate([{"input_ids": row, "labels": row} for row in rows])

    def seconds(self, step: Batch, name: str) -> float:
        """Return the CPU-seconds of a step (forward and backward) in the layout `name`."""
        start = time.thread_time()
        batches = split(step, self.plan.layouts[name], pad_token_id=0)
        for batch in batches:
            outputs = self._model(**batch, use_cache=False, fused_lm_head=True)
            (-outputs.log_probs.sum() / 1000).backward()
        took = time.thread_time() - start
        self._model.zero_grad()
        return took

    def _length(self) -> int:
        return round(math.exp(self._draw.uniform(math.log(self._low), math.log(self._high))))


def measure(size: str, lengths: str, rows: int, rounds: int) -> dict[str, Any]:  # Any: JSON
    cell = Cell(size, lengths, rows)
    times: dict[str, list[float]] = {name: [] for name in cell.plan.layouts}
    for name in times:  # the first step includes one-time costs
        cell.seconds(cell.step(), name)
    for _ in range(rounds):
        step = cell.step()
        for name in times:
            times[name].append(cell.seconds(step, name))
    cost = {name: statistics.median(took) for name, took in times.items()}
    best = min(cost, key=lambda name: cost[name])
    fastest = cost[best]
    return {
        "model": size,
        "lengths": lengths,
        "rows": rows,
        "chosen": cell.plan.first,
        "fastest": best,
        "seconds": {name: round(value, 5) for name, value in cost.items()},
        "slower": round(cost[cell.plan.first] / fastest - 1, 4),
        "cost": round(cell.rule_seconds / (STEPS * fastest), 4),
        "trial_steps": 0,
        "trial_seconds": round(cell.rule_seconds, 3),
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", choices=MODELS, action="append")
    arguments.add_argument("--lengths", choices=LENGTHS, action="append")
    arguments.add_argument("--rows", type=int, action="append")
    arguments.add_argument("--rounds", type=int, default=9)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    cells = []
    for size in options.model or MODELS:
        for lengths in options.lengths or LENGTHS:
            for rows in options.rows or MODELS[size]:
                cells.append(measure(size, lengths, rows, options.rounds))
                sys.stdout.write(json.dumps(cells[-1]) + "\n")
                sys.stdout.flush()
    worst = {name: max(cell[name] for cell in cells) for name in ("slower", "cost")}
    sys.stdout.write(json.dumps({"cells": len(cells), **worst}) + "\n")
    if len(cells) == len(LENGTHS) * sum(map(len, MODELS.values())):
        facts = {"cpu": cpu_model(), "torch": torch.__version__, "at": str(date.today())}
        results = {**facts, "bars": {"slower": SLOWER, "cost": COST}, **worst}
        path = Path(__file__).parent / "results" / "layouts.json"
        path.write_text(json.dumps({**results, "cells": cells}, indent=1) + "\n")
    return 0 if worst["slower"] <= SLOWER and worst["cost"] <= COST else 1


if __name__ == "__main__":
    sys.exit(main())

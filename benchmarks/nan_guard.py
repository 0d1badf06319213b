"""What keeping NaN from the optimiser, and the tripwires, cost: `python -m benchmarks.nan_guard`.

Trains tiny-math on GSM8K as a user's run does, in this process and on one thread, and adds up the
CPU time of

step        an optimiser step: forward, backward, clipping, update
guard       keeping the step's rows, judging the norm, reading the flag when it is logged
found_inf   an update with the flag against the same update without it, alternated after the run
look        what is read at steps 1, 10 and 50, spread over the run's steps

Bar: guard and found_inf together below 0.5 % of a step. One JSON line; `--write` keeps it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tunesmith_schema import Recipe, RunSpec
from tunesmith_worker.engine.random_state import random_state
from tunesmith_worker.trainer.methods.nan_guard import NanGuard
from tunesmith_worker.trainer.methods.sft import SFTTrainer
from tunesmith_worker.trainer.run import main as train
from tunesmith_worker.trainer.selfcheck import Tripwires

from .service_parts.machine import cpu_model

RESULT = Path(__file__).parent / "results" / "nan_guard.json"
RECIPES: dict[str, dict[str, Any]] = {  # Any: JSON
    "lora": {},
    "full fp32": {"tuning": "full", "precision": "fp32"},
    "full bf16_error_word": {"tuning": "full", "precision": "bf16_split_master"},
    "full bf16_sr8": {"tuning": "full", "precision": "bf16_sr8"},
}
ROUNDS = 25
Untyped = Any  # Any: transformers is not typed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="keep it in benchmarks/results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "cpu": cpu_model(),
        "torch": torch.__version__,
        "steps": given.steps,
        "recipes": {name: measured(given, recipe) for name, recipe in RECIPES.items()},
    }
    line = json.dumps(result, indent=1)
    sys.stdout.write(line + "\n")
    if given.write:
        RESULT.write_text(line + "\n", encoding="utf-8")
    return 0


def measured(given: argparse.Namespace, recipe: dict[str, Any]) -> dict[str, float]:
    spent = {"loop": 0.0, "guard": 0.0, "look": 0.0}
    trainers: list[Untyped] = []

    def counted(name: str, work: Callable[..., Untyped]) -> Callable[..., Untyped]:
        def run(*arguments: Untyped, **named: Untyped) -> Untyped:
            began = time.process_time()
            try:
                return work(*arguments, **named)
            finally:
                spent[name] += time.process_time() - began

        return run

    def loop(trainer: Untyped, *arguments: Untyped, **named: Untyped) -> Untyped:
        trainers.append(trainer)
        return counted("loop", trainer_loop)(trainer, *arguments, **named)

    trainer_loop = SFTTrainer.train
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder), given, recipe)
        patches = [patch.object(SFTTrainer, "train", loop)]
        for owner, names, kind in (
            (NanGuard, ("start_step", "check_norm", "check"), "guard"),
            (Tripwires, ("on_train_begin", "on_pre_optimizer_step", "on_step_end"), "look"),
        ):
            patches += [
                patch.object(owner, name, counted(kind, getattr(owner, name))) for name in names
            ]
        patches.append(
            patch(f"{SFTTrainer.__module__}.random_state", counted("guard", random_state))
        )
        for one in patches:
            one.start()
        try:
            if train(Path(folder)):
                raise SystemExit("the run failed")
        finally:
            for one in patches:
                one.stop()
    step = spent["loop"] / given.steps
    flag, update = _flag(trainers[0])
    guard = spent["guard"] / given.steps
    return {
        "step_ms": round(1e3 * step, 3),
        "guard_ms": round(1e3 * guard, 4),
        "update_ms": round(1e3 * update, 3),
        "found_inf_ms": round(1e3 * flag, 4),
        "guard_percent": round(100 * (guard + max(0.0, flag)) / step, 3),
        "look_ms_in_all": round(1e3 * spent["look"], 2),
        "look_percent_of_200_steps": round(100 * spent["look"] / (200 * step), 3),
    }


def _flag(trainer: Untyped) -> tuple[float, float]:
    """Seconds that the flag adds to an update, and those of an update: medians of pairs."""
    optimizer = trainer.optimizer.optimizer
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 1e-4)
    pairs = []
    for turn in range(2 * ROUNDS):
        times = {}
        for found in (
            (None, trainer.guard.found_inf) if turn % 2 else (trainer.guard.found_inf, None)
        ):
            optimizer.found_inf = found
            began = time.process_time()
            optimizer.step()
            times[found is not None] = time.process_time() - began
        pairs.append((times[True] - times[False], times[False]))
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def _prepare(folder: Path, given: argparse.Namespace, recipe: dict[str, Any]) -> None:
    rows = (given.data / "gsm8k" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    (folder / "train.jsonl").write_text("\n".join(rows[:400]), encoding="utf-8")
    spec = RunSpec(
        job_id="guard",
        attempt=1,
        model="tiny-math",
        model_path=str(given.data.resolve() / "models" / "tiny-math"),
        training_file="train.jsonl",
        validation_file=None,
        seed=1,
        recipe=Recipe.model_validate(
            {
                "max_steps": given.steps,
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": 1,
                **recipe,
            }
        ),
    )
    (folder / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

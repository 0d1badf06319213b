"""Learning curve of GRPO: `python -m benchmarks.grpo_learns [--seeds 1 2 3] [--stock]`.

Starts a service and runs a reinforcement job through its API. The job trains the model
tiny-math-flat (in ../shared/data) with LoRA r 16 on one-step word problems. A step has 16 prompts x
8 completions; the grader is `math_answer`. Then the benchmark measures pass@1 of the downloaded
adapter on held-out problems. With `--stock`, TRL's GRPOTrainer also trains with each seed, in a
separate process and with TRL's sampling (grpo_learns_stock.py). With `--engine vllm`, vLLM
generates the completions. `--engine vllm` needs `--trainer-python` (a Python interpreter with vLLM)
or `--rollout-url` (the URL of a vLLM server with tiny-math-flat; see docs/how-to/vllm.md). Prints
one JSON line with the values below.

`before`, `after`: pass@1 on the held-out problems, with 8 completions per problem at temperature 1;
    `after` has one value per seed.
`first`, `last`: Mean reward of the job's first and last 10 steps.
`wall_seconds`: Seconds from the creation of the job to its end.
`cpu_seconds`: CPU-seconds of all processes of the installation, including its start: API, broker,
    workers and trainer.
`stock_last`: Mean reward of stock TRL's last 10 steps.
`difference`: Mean reward of our last 10 steps minus mean reward of stock TRL's last 10 steps,
    averaged over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tunesmith

from .pass_at_1 import pass_at_1
from .service_parts.installation import installation
from .service_parts.machine import facts
from .two_sides import run_side

SHARED = Path(__file__).parents[2] / "shared" / "data"
MODEL = SHARED / "models" / "tiny-math-flat"
TRAIN = SHARED / "synthetic" / "train.jsonl"
HELD_OUT = SHARED / "synthetic" / "heldout.jsonl"
STOCK = Path(__file__).with_name("grpo_learns_stock.py")
GRADER = {"type": "math_answer", "reference": "{{item.answer}}"}
RANK, RATE = 16, 1e-3
PROMPTS, GROUP, COMPLETION_TOKENS = 16, 8, 64
COMPARED = 10
"""Number of steps over which rewards are averaged."""
BARS = {"after": 0.50, "after_each": 0.46, "wall_seconds": 180, "stock_difference": 0.05}
Run = dict[str, Any]  # Any: JSON


@dataclass(frozen=True)
class Side:
    engine: str
    trainer_python: str
    rollout_url: str

    @property
    def name(self) -> str:
        return f"{self.engine} server" if self.rollout_url else self.engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--stock", action="store_true", help="train with stock TRL as well")
    parser.add_argument("--engine", choices=["native", "vllm"], default="native")
    parser.add_argument("--trainer-python", default=sys.executable)
    parser.add_argument("--rollout-url", default="")
    options = parser.parse_args()
    side = Side(options.engine, options.trainer_python, options.rollout_url)
    before = measured(None)
    runs = [one_run(seed, options.steps, side, stock=options.stock) for seed in options.seeds]
    print(json.dumps(summary(before, runs, options.steps, side.name)))
    return 0


def one_run(seed: int, steps: int, side: Side, *, stock: bool) -> Run:
    """Run our job and measure pass@1 of its adapter. If `stock` is True, also train with stock
    TRL."""
    with tempfile.TemporaryDirectory(prefix="tunesmith-benchmark-") as folder:
        run = job(Path(folder), seed, steps, side)
        run["after"] = measured(Path(folder) / "adapter")
    sys.stderr.write(f"seed {seed}: {json.dumps(run)}\n")
    if stock:
        arguments = ["--seed", str(seed), "--steps", str(steps)]
        run["stock"] = run_side(STOCK, "stock", arguments, {})
    return run


def job(folder: Path, seed: int, steps: int, side: Side) -> Run:
    """Train in a new installation inside `folder` and download the adapter to `folder`."""
    used = child_seconds()
    models = str(MODEL.parent)
    with (
        installation(
            folder,
            workers=True,
            MODEL_DIRS=models,
            WARM_TRAINER="false",
            TRAINER_PYTHON=side.trainer_python,
            ROLLOUT_URL=side.rollout_url,
        ) as service,
        tunesmith.Client(f"{service.url}/v1", service.api_key) as client,
    ):
        file = client.files.create(file=TRAIN)
        client.files.wait_for_processing(file.id)
        start = time.monotonic()
        created = client.fine_tuning.jobs.create(
            model=MODEL.name,
            training_file=file.id,
            seed=seed,
            grader=GRADER,
            recipe={
                "tuning": "lora",
                "lora": {"r": RANK},
                "learning_rate": RATE,
                "lr_scheduler_type": "constant",
                "max_steps": steps,
                "rollout": {"fast_inference": side.engine == "vllm"},
                "grpo": {
                    "prompts_per_step": PROMPTS,
                    "num_generations": GROUP,
                    "max_completion_length": COMPLETION_TOKENS,
                },
            },
        ).wait()
        wall = time.monotonic() - start
        client.adapters.download(created.id, folder / "adapter")
        rewards = [
            point.values["reward"] for point in created.metrics() if "reward" in point.values
        ]
    return {
        "seed": seed,
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(child_seconds() - used, 1),
        "rewards": rewards,
    }


def measured(adapter: Path | None) -> float:
    return pass_at_1(MODEL, adapter, HELD_OUT, GRADER, samples=GROUP, max_tokens=COMPLETION_TOKENS)


def child_seconds() -> float:
    """Return the CPU-seconds of all ended child processes and their descendants."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(before: float, runs: Sequence[Run], steps: int, engine: str = "native") -> Run:
    after = [float(run["after"]) for run in runs]
    line: Run = {
        "benchmark": "grpo_learns",
        "engine": engine,
        **facts(),
        "load_average": round(os.getloadavg()[1], 1),
        "steps": steps,
        "bars": BARS,
        "before": round(before, 4),
        "after": [round(share, 4) for share in after],
        "after_mean": round(fmean(after), 4),
        "first": [mean_reward(run["rewards"][:COMPARED]) for run in runs],
        "last": [mean_reward(run["rewards"][-COMPARED:]) for run in runs],
        "wall_seconds": [run["wall_seconds"] for run in runs],
        "cpu_seconds": [run["cpu_seconds"] for run in runs],
        "runs": list(runs),
    }
    pairs = [(run["rewards"], run["stock"]["rewards"]) for run in runs if "stock" in run]
    return line | paired(pairs) if pairs else line


def paired(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Run:
    """Compare our rewards with those of stock TRL for each seed, up to the end of the shorter
    run."""
    both = [(ours[: len(stock)], stock[: len(ours)]) for ours, stock in pairs]
    ours, stock = ([mean_reward(pair[side][-COMPARED:]) for pair in both] for side in (0, 1))
    return {
        "stock_steps": [len(pair[1]) for pair in both],
        "ours_last": ours,
        "stock_last": stock,
        "difference": round(fmean(ours) - fmean(stock), 4),
    }


def mean_reward(rewards: Sequence[float]) -> float:
    return round(fmean(rewards), 4)


if __name__ == "__main__":
    sys.exit(main())

"""GRPO, ours against stock TRL: `python -m benchmarks.grpo`.

First both sides compute a step's loss and gradients from the same completions (benchmarks/
grpo_parity.py). Then both train alternately, each run in a process of its own on one thread
(benchmarks/grpo_side.py): the 12.4 M Llama of benchmarks/sft.py, LoRA r 32, 2 prompts x 8
completions x 128 tokens, same prompts and lengths, no recompute. A whole step counts: generation,
rewards, forward, backward, clipping, optimiser, and what each side logs and keeps. One JSON line:

speed_ratio       median over the rounds of theirs / ours, CPU-seconds of a step
generation_ratio  the same of generation alone, as the trainers ask for it
memory_ratio      ours / theirs, peak resident memory above what was there before training
lora_over_full    ours: full tuning's CPU-seconds of a step, in one run / LoRA's in the last
beside_share      ours: of a step, what is neither the engine's, nor log-probabilities' forward,
                  nor backward: texts, rewards, advantages, samples, metrics, guards, optimiser
phases            CPU-seconds of a step: generate, score (rewards, advantages), forward, backward,
                  other (optimiser, logs)

The first step is left out and printed. In bf16 stock gets the better of bf16 weights and
autocast, by round. `--ragged`: completions of 16 to 128 tokens, log-uniform, so forced on both
sides. `--their-allocator` gives our malloc options to the other side as well.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .service_parts.machine import cpu_model
from .sft import ALLOCATOR
from .two_sides import run_side

SIDE = Path(__file__).with_name("grpo_side.py")
PARITY = Path(__file__).with_name("grpo_parity.py")
Run = dict[str, Any]  # Any: JSON

SPEED_BARS = {
    ("float32", 70, False): 2.3,
    ("bfloat16", 70, False): 3.2,
    ("float32", 512, False): 4.0,
    ("float32", 70, True): 3.5,
}
"""Least speed_ratio by dtype, prompt tokens and raggedness, with LoRA."""
GENERATION_BARS = {"float32": 2.4, "bfloat16": 2.6}
"""Least generation_ratio with 70-token prompts and completions of equal length."""
MEMORY_BAR = 0.40
LORA_BAR = 1.0
BESIDE_BAR = 0.02
PARITY_BARS = {"loss_difference": 1e-6, "gradient_difference": 1e-5}
"""In fp32."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tuning", choices=["lora", "full"], default="lora")
    parser.add_argument("--prompt-tokens", type=int, default=70)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--steps", type=int, default=4, help="beside the one that warms up")
    parser.add_argument("--their-allocator", action="store_true")
    given = parser.parse_args()
    shared = [
        *("--dtype", given.dtype, "--steps", str(given.steps)),
        *("--prompt-tokens", str(given.prompt_tokens), "--new-tokens", str(given.new_tokens)),
        *(["--ragged"] if given.ragged else []),
    ]
    own = ["--tuning", given.tuning]
    parity = run_side(PARITY, "ours", [*shared, *own], {})
    print(f"parity: {parity}", file=sys.stderr)
    extra = ALLOCATOR if given.their_allocator else {}
    settings = ["stock", "stock-autocast"] if given.dtype == "bfloat16" else ["stock"]
    ours, theirs = [], []
    full: list[Run] = []
    for _ in range(given.rounds):
        stock = [run(side, [*shared, *own], extra) for side in settings]
        theirs.append(min(stock, key=lambda one: float(one["step_cpu_seconds"])))
        ours.append(run("ours", [*shared, *own], {}))
    if given.tuning == "lora":
        full.append(run("ours", [*shared, "--tuning", "full"], {}))
    print(json.dumps(summary(given, parity, ours, theirs, full)))
    return 0


def run(side: str, arguments: list[str], extra: dict[str, str]) -> Run:
    result: Run = run_side(SIDE, side, arguments, extra)
    words = f"{result['step_cpu_seconds']:.3f} CPU-s a step, {result['phases']}"
    print(f"{side} {result['tuning']}: {words}", file=sys.stderr)
    return result


def summary(
    given: argparse.Namespace, parity: Run, ours: list[Run], theirs: list[Run], full: list[Run]
) -> Run:
    speeds = ratios(theirs, ours, lambda one: float(one["step_cpu_seconds"]))
    generation = ratios(theirs, ours, lambda one: float(one["phases"]["generate"]))
    over_full = ratios(
        full, ours[len(ours) - len(full) :], lambda one: float(one["step_cpu_seconds"])
    )
    lora, even = given.tuning == "lora", given.prompt_tokens == 70 and not given.ragged
    bar = SPEED_BARS.get((given.dtype, given.prompt_tokens, given.ragged)) if lora else None
    return {
        "benchmark": "grpo",
        "dtype": given.dtype,
        "tuning": given.tuning,
        "prompt_tokens": given.prompt_tokens,
        "new_tokens": given.new_tokens,
        "ragged": given.ragged,
        "speed_ratio": round(statistics.median(speeds), 3),
        "speed_ratios": [round(one, 3) for one in speeds],
        "speed_bar": bar,
        "generation_ratio": round(statistics.median(generation), 3),
        "generation_bar": GENERATION_BARS[given.dtype] if lora and even else None,
        "memory_ratio": round(peak(ours) / peak(theirs), 3),
        "memory_bar": MEMORY_BAR if bar is not None else None,
        "lora_over_full": round(statistics.median(over_full), 3) if full else None,
        "lora_over_full_bar": LORA_BAR if full else None,
        "beside_share": round(statistics.median(one["beside_share"] for one in ours), 4),
        "beside_share_bar": BESIDE_BAR,
        "generated_per_cpu_second": [
            round(statistics.median(one["generated_per_cpu_second"] for one in side), 1)
            for side in (ours, theirs)
        ],
        "parity": parity,
        "parity_bars": PARITY_BARS if given.dtype == "float32" else None,
        "their_allocator": given.their_allocator,
        "load_average": round(os.getloadavg()[1], 1),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": "cpu",
        "cpu": cpu_model(),
        "torch": ours[0]["torch"],
        "phases": {"ours": phases(ours), "theirs": phases(theirs)},
        "ours": ours,
        "theirs": theirs,
        "ours_full": full,
    }


def ratios(above: list[Run], below: list[Run], of: Callable[[Run], float]) -> list[float]:
    """By round."""
    return [of(a) / of(b) for a, b in zip(above, below, strict=True)]


def phases(runs: list[Run]) -> dict[str, float]:
    names = runs[0]["phases"]
    return {name: statistics.median(one["phases"][name] for one in runs) for name in names}


def peak(runs: list[Run]) -> float:
    return statistics.median(float(one["peak_above_idle_mib"]) for one in runs)


if __name__ == "__main__":
    sys.exit(main())

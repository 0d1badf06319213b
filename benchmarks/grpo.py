"""Compare GRPO steps with stock TRL: `python -m benchmarks.grpo`.

First, our trainer and stock TRL compute the loss and gradients of one step from the same
completions (grpo_parity.py). Then the two trainers run alternately; each run has its own process
and one thread (grpo_side.py). The model is the Llama of sft.py with 12.4 million parameters,
trained with LoRA r 32 and without recomputation. A step has 2 prompts with 8 completions of 128
tokens each. Both trainers use the same prompts and completion lengths. A step includes generation,
rewards, forward, backward, clipping, optimizer, logging and the stored samples. Prints one JSON
line with the values below.

`speed_ratio`: CPU-seconds of a step, stock TRL / ours; median over the rounds.
`generation_ratio`: CPU-seconds of generation, stock TRL / ours.
`memory_ratio`: Peak resident memory minus resident memory before training, ours / stock TRL.
`lora_over_full`: CPU-seconds of our step, full tuning / LoRA. Full tuning runs once, and is
    compared with the LoRA run of the last round.
`beside_share`: Share of our step's CPU time that is neither generation, nor the forward pass for
    log-probs, nor the backward pass.
`phases`: CPU-seconds of a step: generate, score (rewards, advantages), forward, backward, other
    (optimizer, logs).

The first step's results are printed but not counted. In bf16, stock TRL runs once with bf16 weights
and once with autocast; only the faster run of each round counts. `--ragged` forces completions of
16 to 128 tokens (log-uniform) for both trainers. Our trainer sets options of glibc's malloc;
`--their-allocator` sets the same options for stock TRL.
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
"""Minimum speed_ratio with LoRA for each dtype, prompt length in tokens and value of `--ragged`."""
GENERATION_BARS = {"float32": 2.4, "bfloat16": 2.6}
"""Minimum generation_ratio for 70-token prompts and completions of equal length."""
MEMORY_BAR = 0.40
LORA_BAR = 1.0
BESIDE_BAR = 0.02
PARITY_BARS = {"loss_difference": 1e-6, "gradient_difference": 1e-5}
"""Maximum differences of loss and gradients in fp32."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tuning", choices=["lora", "full"], default="lora")
    parser.add_argument("--prompt-tokens", type=int, default=70)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--steps", type=int, default=4, help="steps after the warm-up step")
    parser.add_argument("--their-allocator", action="store_true")
    options = parser.parse_args()
    shared = [
        *("--dtype", options.dtype, "--steps", str(options.steps)),
        *("--prompt-tokens", str(options.prompt_tokens), "--new-tokens", str(options.new_tokens)),
        *(["--ragged"] if options.ragged else []),
    ]
    own = ["--tuning", options.tuning]
    parity = run_side(PARITY, "ours", [*shared, *own], {})
    print(f"parity: {parity}", file=sys.stderr)
    extra = ALLOCATOR if options.their_allocator else {}
    settings = ["stock", "stock-autocast"] if options.dtype == "bfloat16" else ["stock"]
    ours, theirs = [], []
    full: list[Run] = []
    for _ in range(options.rounds):
        stock = [run(side, [*shared, *own], extra) for side in settings]
        theirs.append(min(stock, key=lambda result: float(result["step_cpu_seconds"])))
        ours.append(run("ours", [*shared, *own], {}))
    if options.tuning == "lora":
        full.append(run("ours", [*shared, "--tuning", "full"], {}))
    print(json.dumps(summary(options, parity, ours, theirs, full)))
    return 0


def run(side: str, arguments: list[str], extra: dict[str, str]) -> Run:
    result: Run = run_side(SIDE, side, arguments, extra)
    words = f"{result['step_cpu_seconds']:.3f} CPU-s a step, {result['phases']}"
    print(f"{side} {result['tuning']}: {words}", file=sys.stderr)
    return result


def summary(
    options: argparse.Namespace, parity: Run, ours: list[Run], theirs: list[Run], full: list[Run]
) -> Run:
    speeds = ratios(theirs, ours, lambda result: float(result["step_cpu_seconds"]))
    generation = ratios(theirs, ours, lambda result: float(result["phases"]["generate"]))
    over_full = ratios(
        full, ours[len(ours) - len(full) :], lambda result: float(result["step_cpu_seconds"])
    )
    lora, even = options.tuning == "lora", options.prompt_tokens == 70 and not options.ragged
    bar = SPEED_BARS.get((options.dtype, options.prompt_tokens, options.ragged)) if lora else None
    return {
        "benchmark": "grpo",
        "dtype": options.dtype,
        "tuning": options.tuning,
        "prompt_tokens": options.prompt_tokens,
        "new_tokens": options.new_tokens,
        "ragged": options.ragged,
        "speed_ratio": round(statistics.median(speeds), 3),
        "speed_ratios": [round(result, 3) for result in speeds],
        "speed_bar": bar,
        "generation_ratio": round(statistics.median(generation), 3),
        "generation_bar": GENERATION_BARS[options.dtype] if lora and even else None,
        "memory_ratio": round(peak(ours) / peak(theirs), 3),
        "memory_bar": MEMORY_BAR if bar is not None else None,
        "lora_over_full": round(statistics.median(over_full), 3) if full else None,
        "lora_over_full_bar": LORA_BAR if full else None,
        "beside_share": round(statistics.median(result["beside_share"] for result in ours), 4),
        "beside_share_bar": BESIDE_BAR,
        "generated_per_cpu_second": [
            round(statistics.median(result["generated_per_cpu_second"] for result in side), 1)
            for side in (ours, theirs)
        ],
        "parity": parity,
        "parity_bars": PARITY_BARS if options.dtype == "float32" else None,
        "their_allocator": options.their_allocator,
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
    """Return the value of `above` divided by the value of `below` for each round.

    Each list has one run per round; `of` computes the value of a run."""
    return [of(a) / of(b) for a, b in zip(above, below, strict=True)]


def phases(runs: list[Run]) -> dict[str, float]:
    names = runs[0]["phases"]
    return {name: statistics.median(run["phases"][name] for run in runs) for name in names}


def peak(runs: list[Run]) -> float:
    return statistics.median(float(run["peak_above_idle_mib"]) for run in runs)


if __name__ == "__main__":
    sys.exit(main())

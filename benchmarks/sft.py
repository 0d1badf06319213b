"""Compare supervised fine-tuning with stock TRL: `python -m benchmarks.sft`.

Our trainer and stock TRL run alternately; each run has its own process and one thread
(sft_side.py). Both trainers train the same model on the same rows in the same order: a Llama of
12.4 million parameters, rows of 32 to 768 tokens, LoRA r 32, packs of 2 x 1,024 tokens, no
recomputation. A step includes data, forward, backward, clipping, optimizer and TRL's logging.
Prints one JSON line with the values below.

`speed_ratio`: Tokens per CPU-second (GPU: per second), ours / stock TRL; median over the rounds.
`memory_ratio`: Peak memory minus memory before training, ours / stock TRL. On a GPU, the memory is
    the memory that torch has allocated; on a CPU, the resident memory of the process.
`loss_difference`: Largest relative difference between our loss and stock TRL's loss in a step.

Our trainer sets options of glibc's malloc; `--their-allocator` sets the same options for stock TRL.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .service_parts.machine import cpu_model
from .two_sides import run_side
from .worst import as_error

SIDE = Path(__file__).with_name("sft_side.py")
ALLOCATOR = {
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1),
    "MALLOC_MMAP_THRESHOLD_": str(2**31 - 1),
}
BARS = {
    ("lora", "float32", "stock-packing"): (2.4, 0.40),
    ("lora", "bfloat16", "stock-packing"): (3.2, 0.50),
    ("lora", "float32", "stock-default"): (3.3, None),
    ("lora", "bfloat16", "stock-default"): (4.0, None),
    ("full", "float32", "stock-packing"): (1.6, None),
}
"""Minimum speed_ratio and maximum memory_ratio."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--tuning", choices=["lora", "full"], default="lora")
    parser.add_argument(
        "--against", choices=["stock-packing", "stock-default", "liger"], default="stock-packing"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--pack", type=int, default=1024, help="tokens in a pack")
    parser.add_argument("--batch", type=int, default=2, help="packs in a batch")
    parser.add_argument("--their-allocator", action="store_true")
    options = parser.parse_args()
    shared = [
        *("--dtype", options.dtype, "--tuning", options.tuning, "--steps", str(options.steps)),
        *("--pack", str(options.pack), "--batch", str(options.batch)),
    ]
    ours, theirs = [], []
    for _ in range(options.rounds):
        theirs.append(run(options.against, shared, ALLOCATOR if options.their_allocator else {}))
        ours.append(run("ours", shared, {}))
    print(json.dumps(summary(options, ours, theirs)))
    return 0


def run(side: str, arguments: list[str], extra: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = run_side(SIDE, side, arguments, extra)
    print(f"{side}: {result['tokens_per_cpu_second']:.0f} tokens/CPU-s", file=sys.stderr)
    return result


def summary(
    options: argparse.Namespace, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> dict[str, Any]:
    on_gpu = ours[0]["device"] != "cpu"
    speed = "tokens_per_second" if on_gpu else "tokens_per_cpu_second"
    ratios = [a[speed] / b[speed] for a, b in zip(ours, theirs, strict=True)]
    # A padded batch and a pack have different rows in a step, so their losses are not comparable.
    same_rows = options.against != "stock-default"
    bar = BARS.get((options.tuning, options.dtype, options.against), (None, None))
    return {
        "benchmark": "sft",
        "against": options.against,
        "dtype": options.dtype,
        "tuning": options.tuning,
        "packs": [options.batch, options.pack],
        "speed_ratio": round(statistics.median(ratios), 3),
        "speed_ratios": [round(ratio, 3) for ratio in ratios],
        "speed_bar": bar[0],
        "memory_ratio": round(peak(ours) / peak(theirs), 3),
        "memory_bar": bar[1],
        "loss_difference": difference(ours[0], theirs[0]) if same_rows else None,
        "their_allocator": options.their_allocator,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": ours[0]["device"],
        "cpu": cpu_model(),
        "torch": ours[0]["torch"],
        "ours": ours,
        "theirs": theirs,
    }


def peak(runs: list[dict[str, Any]]) -> float:
    return statistics.median(float(run["peak_above_idle_mib"]) for run in runs)


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    pairs = zip(ours["losses"], theirs["losses"], strict=True)
    return max(as_error(abs(float(a) - float(b)) / abs(float(b))) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())

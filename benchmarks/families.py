"""Compare the training speed of model families with stock TRL: `python -m benchmarks.families`.

Each family is a tiny random model in fp32: 4 layers, hidden size 256, a vocabulary of 8,192 tokens.
Our trainer and stock TRL each have one process with one thread. For each model, these two processes
run one after the other. A step trains on one packed sequence of 1,024 tokens, made of rows of 32 to
768 tokens, with LoRA r 32 (as in sft.py). Prints one JSON line. For each family, the line has
the values below.

`speed_ratio`: Tokens per CPU-second, ours / stock TRL; median over the rounds.
`loss_difference`: Largest relative difference between our loss and stock TRL's loss in a step.
`patched`: Modules whose forward pass runs our kernels.

The exit status is 1 if losses differ by more than 1e-5, or if fewer than five families reach the
required speed ratio. `--write` writes benchmarks/results/families.json after each family, and keeps
the results of families that `--only` does not name.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .service_parts.machine import commit, cpu_model
from .sft import SIDE, difference
from .two_sides import Side

RESULT = Path(__file__).parent / "results" / "families.json"
FAMILIES = (
    *("ministral3", "glm4", "cohere2", "seed_oss", "ernie4_5", "exaone4", "arcee", "starcoder2"),
    *("mixtral", "hunyuan_v1_dense", "olmo", "helium", "glm", "cohere", "qwen3_moe", "jais2"),
    "nemotron",
)
SPEED, ENOUGH, LOSS = 2.0, 5, 1e-5
"""Required speed ratio, number of families that must reach this ratio, and largest allowed relative
difference of a loss."""

Runs = list[dict[str, Any]]  # Any: JSON


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument(
        "--steps", type=int, default=4, help="steps of each run; the first step is not counted"
    )
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    arguments = ["--steps", str(options.steps), "--warm-up", "1", "--batch", "1", "--models"]
    arguments += [name for name in options.only for _ in range(options.rounds)]
    theirs, ours = (Side(SIDE, side, arguments) for side in ("stock-packing", "ours"))
    families: list[dict[str, Any]] = []
    for name in options.only:
        turns = [(theirs.run(), ours.run()) for _ in range(options.rounds)]
        families.append(judged(name, [a for _, a in turns], [b for b, _ in turns]))
        print(line(families[-1]), file=sys.stderr, flush=True)
        result = summary(families, load)
        if options.write:
            kept = [old for old in read_families() if old["model_type"] not in options.only]
            result = summary(in_order(kept + families), load)
            RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for side in (theirs, ours):
        side.close()
    print(json.dumps(result))
    return 0 if result["within_bars"] else 1


def read_families() -> list[dict[str, Any]]:  # Any: JSON
    """Return the families in the stored results file."""
    text = RESULT.read_text(encoding="utf-8") if RESULT.exists() else '{"families": []}'
    families: list[dict[str, Any]] = json.loads(text)["families"]
    return families


def in_order(families: list[dict[str, Any]]) -> list[dict[str, Any]]:  # Any: JSON
    return sorted(families, key=lambda family: FAMILIES.index(family["model_type"]))


def judged(model_type: str, ours: Runs, theirs: Runs) -> dict[str, Any]:  # Any: JSON
    """Compare the runs of our trainer with the runs of stock TRL; return the results of a
    family."""
    key = "tokens_per_cpu_second"
    ratios = [a[key] / b[key] for a, b in zip(ours, theirs, strict=True)]
    pairs = zip(ours, theirs, strict=True)
    return {
        "model_type": model_type,
        "commit": commit(),
        "speed_ratio": round(statistics.median(ratios), 3),
        "speed_ratios": [round(ratio, 3) for ratio in ratios],
        "loss_difference": max(difference(a, b) for a, b in pairs),
        "patched": ours[0]["patched"],
        "ours": round(statistics.median(run[key] for run in ours)),
        "theirs": round(statistics.median(run[key] for run in theirs)),
    }


def summary(families: list[dict[str, Any]], load: float) -> dict[str, Any]:  # Any: JSON
    import torch
    import transformers

    fast = [family["model_type"] for family in families if family["speed_ratio"] >= SPEED]
    worst = max(family["loss_difference"] for family in families)
    return {
        "benchmark": "families",
        "bars": {"speed_ratio": SPEED, "families": ENOUGH, "loss_difference": LOSS},
        "fast": fast,
        "worst_loss_difference": worst,
        "within_bars": len(fast) >= min(ENOUGH, len(families)) and worst <= LOSS,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": ", ".join(dict.fromkeys(family["commit"] for family in families)),
        "load_before": round(load, 2),
        "cpu": cpu_model(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "families": families,
    }


def line(family: dict[str, Any]) -> str:  # Any: JSON
    """Format a family as a row of a Markdown table."""
    return (
        f"| {family['model_type']} | {family['speed_ratio']:.2f}x "
        f"| {family['ours']} / {family['theirs']} | {family['loss_difference']:.1e} |"
    )


if __name__ == "__main__":
    sys.exit(main())

"""Compare our rollout engine with transformers: `python -m benchmarks.rollout`.

Our engine and transformers run alternately; each run has its own process and one thread
(rollout_side.py). The model is the Llama of sft.py with 12.4 million parameters and a nonzero LoRA
adapter of rank 32. A rollout generates 8 completions of 128 tokens for each of 2 prompts, at
temperature 1. A rollout includes the weight sync, which loads the newest weights into the engine. A
run's result is the fastest rollout after the first rollout, because other load on the machine can
only slow a rollout. Prints one JSON line with the values below.

`speed_ratio`: CPU-seconds of a rollout, transformers / ours; median over the rounds.
`memory_ratio`: Peak resident memory minus resident memory before the first rollout, ours /
    transformers.
`sync_share`: Share of our CPU-seconds spent on the weight sync.

With `--engines`, each engine of `recipe.rollout.fast_inference` generates 1, 8 and 32 rows from
prompts of 16 and 512 tokens (rollout_engines.py). A cell is a number of rows and a prompt length.
For each engine and cell, prints one JSON line with the values below.

`tokens_per_cpu_second`: Generated tokens per CPU-second of the fastest rollout.
`over_native`: CPU-seconds of the engine / CPU-seconds of the native engine.

For an engine that cannot generate, one line has the reason in `skipped`. `--vllm-python` is the
interpreter of an environment with vLLM.

With `--sync`, rollout_sync.py measures four ways to load a new adapter into an engine. The results
are the CPU-seconds and bytes of a sync, and the speed of a rollout of 8 rows.

With `--ragged`, completions have 16 to 128 tokens (log-uniform), and transformers' batch runs until
its longest completion ends. Our process sets options of glibc's malloc; `--their-allocator` sets
the same options for transformers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .service_parts.machine import cpu_model
from .sft import ALLOCATOR
from .two_sides import run_side

SYNC = Path(__file__).with_name("rollout_sync.py")
ENGINES = Path(__file__).with_name("rollout_engines.py")
SIDE = Path(__file__).with_name("rollout_side.py")
WAYS = ("fold", "merged", "vllm-merged", "vllm-lora")
BARS = {"float32": 2.4, "bfloat16": 2.6}
"""Minimum `speed_ratio` for each dtype, with 70-token prompts and completions of equal length."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=BARS, default="float32")
    parser.add_argument("--prompt-tokens", type=int, default=70)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--layout", choices=["merged", "in-place"], default="merged")
    parser.add_argument(
        "--against",
        choices=["generate", "generate-merged"],
        default="generate",
        help="generate-merged merges the adapter before a rollout and removes it after the rollout",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side")
    parser.add_argument("--their-allocator", action="store_true")
    parser.add_argument("--engines", action="store_true", help="compare all engines")
    parser.add_argument("--sync", action="store_true", help="compare ways to sync an adapter")
    parser.add_argument("--vllm-python", default=sys.executable, metavar="PATH")
    options = parser.parse_args()
    if options.engines or options.sync:
        lines = engine_lines if options.engines else sync_lines
        for line in lines(options.dtype, options.vllm_python):
            print(json.dumps(line), flush=True)
        return 0
    shared = ["--dtype", options.dtype, "--prompt-tokens", str(options.prompt_tokens)]
    shared += ["--ragged"] if options.ragged else []
    own = "ours" if options.layout == "merged" else "ours-in-place"
    ours, theirs = [], []
    for _ in range(options.rounds):
        theirs.append(run(options.against, shared, ALLOCATOR if options.their_allocator else {}))
        ours.append(run(own, shared, {}))
    print(json.dumps(summary(options, ours, theirs)))
    return 0


def run(side: str, arguments: list[str], extra: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = run_side(SIDE, side, arguments, extra)
    print(f"{side}: {result['cpu_seconds']:.3f} CPU-s a rollout", file=sys.stderr)
    return result


def engine_lines(dtype: str, vllm_python: str) -> Iterator[dict[str, Any]]:
    """Yield a line for each engine and cell; the native engine comes first."""
    native: dict[tuple[int, int], float] = {}
    for name in ("native", "transformers", "vllm"):
        python = vllm_python if name == "vllm" else sys.executable
        result = run_side(ENGINES, name, ["--dtype", dtype], {}, python)
        line = {"benchmark": "rollout_engines", "engine": name, "dtype": dtype}
        if result["skipped"]:
            yield line | {"skipped": result["skipped"]}
        for cell in result["cells"]:
            place, speed = (cell["rows"], cell["prompt_tokens"]), cell["tokens_per_cpu_second"]
            native.setdefault(place, speed)
            yield {
                **line,
                **cell,
                "over_native": round(native[place] / speed, 2),
                "load_average": round(os.getloadavg()[0], 1),
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "cpu": cpu_model(),
            }


def sync_lines(dtype: str, vllm_python: str) -> Iterator[dict[str, Any]]:
    """Yield a line for each way to load a new adapter into an engine."""
    for way in WAYS:
        python = vllm_python if way.startswith("vllm") else sys.executable
        line = {"benchmark": "rollout_sync", "dtype": dtype}
        line |= run_side(SYNC, way, ["--dtype", dtype], {}, python)
        yield line | {"at": datetime.now(UTC).isoformat(timespec="seconds"), "cpu": cpu_model()}


def summary(
    options: argparse.Namespace, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]
) -> dict[str, Any]:
    ratios = [b["cpu_seconds"] / a["cpu_seconds"] for a, b in zip(ours, theirs, strict=True)]
    has_bar = options.prompt_tokens == 70 and not options.ragged and options.against == "generate"
    memory = [
        statistics.median(result["peak_above_idle_mib"] for result in side)
        for side in (ours, theirs)
    ]
    return {
        "benchmark": "rollout",
        "against": options.against,
        "layout": options.layout,
        "dtype": options.dtype,
        "prompt_tokens": options.prompt_tokens,
        "ragged": options.ragged,
        "speed_ratio": round(statistics.median(ratios), 3),
        "speed_ratios": [round(ratio, 3) for ratio in ratios],
        "speed_bar": BARS[options.dtype] if has_bar else None,
        "memory_ratio": round(memory[0] / memory[1], 3),
        "sync_share": round(
            statistics.median(
                result["sync_cpu_seconds"] / result["cpu_seconds"] for result in ours
            ),
            4,
        ),
        "their_allocator": options.their_allocator,
        "load_average": round(os.getloadavg()[0], 1),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "torch": ours[0]["torch"],
        "ours": ours,
        "theirs": theirs,
    }


if __name__ == "__main__":
    sys.exit(main())

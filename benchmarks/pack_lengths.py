"""Cost of a token as packs of short rows grow: `python -m benchmarks.pack_lengths`.

Rows of 32 to 768 tokens fill packs of 1,024, 4,096 and 16,384, one pack a step. A token's cost
should not depend on what else lies in its pack. One JSON line: tokens per CPU-second (on a GPU:
per second) for each length, and `worst_over_best`, the dearest length's cost over the cheapest's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from .sft import run

LENGTHS = (1024, 4096, 16384)
TOKENS = 3 * 16384
"""Trained for each length in a round, the first third as warm-up."""
BAR = 1.10


def main() -> int:
    speeds: dict[int, list[float]] = {length: [] for length in LENGTHS}
    for _ in range(2):
        for length in LENGTHS:
            steps = TOKENS // length
            shared = ["--pack", str(length), "--batch", "1", "--steps", str(steps)]
            result: dict[str, Any] = run("ours", [*shared, "--warm-up", str(steps // 3)], {})
            on_gpu = result["device"] != "cpu"
            speeds[length].append(
                result["tokens_per_second" if on_gpu else "tokens_per_cpu_second"]
            )
    best = {length: max(values) for length, values in speeds.items()}
    summary = {
        "benchmark": "pack_lengths",
        "tokens_per_second": {str(length): round(value, 1) for length, value in best.items()},
        "worst_over_best": round(max(best.values()) / min(best.values()), 3),
        "bar": BAR,
        "runs": speeds,
    }
    print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())

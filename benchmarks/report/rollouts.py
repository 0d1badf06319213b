"""Section that compares the rollout engine with transformers' `generate`."""

from __future__ import annotations

import statistics

from .tables import Result, against_bar, date, table


def rollouts(results: list[Result]) -> str:
    words = (
        "## Rollouts\n\n"
        "Generation by a 12.4 M Llama with LoRA r 32, 2 prompts x 8 completions (`python -m "
        "benchmarks.rollout`; `rollout.json`). `sync` is the share of our time for the weight "
        "sync.\n"
    )
    if not results:
        return (
            words
            + "\n**Open**: no result of `python -m benchmarks.rollout` yet (`rollout.json`).\n"
        )
    rows = (
        (
            f"{row['dtype']}, {row['prompt_tokens']}-token prompts"
            + (", ragged" if row["ragged"] else "")
            + (", folded in place" if row["layout"] == "in-place" else ""),
            row["against"],
            against_bar(row["speed_ratio"], row["speed_bar"], at_least=True),
            f"{row['memory_ratio']:.2f}x",
            f"{row['sync_share']:.1%}",
            f"{statistics.median(run['tokens_per_cpu_second'] for run in row['ours']):,.0f}",
            date(row),
        )
        for row in results
    )
    head = ("case", "against", "speed", "memory", "sync", "our tokens per CPU-second", "date")
    return f"{words}\n{table(head, rows)}"

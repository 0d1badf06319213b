"""Sections on the speed of our rollout engine, on all rollout engines, and on weight syncs."""

from __future__ import annotations

import statistics

from .tables import NOT_MEASURED, Result, against_bar, date, table

ENGINES = ("native", "transformers", "vllm")


def rollouts(results: list[Result]) -> str:
    words = (
        "## Rollouts\n\n"
        "Generation by a 12.4 M Llama with LoRA r 32, 2 prompts x 8 completions (`python -m "
        "benchmarks.rollout`; `rollout.json`). `sync` is the share of our rollout time that the "
        "weight sync needs.\n"
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


def engines(results: list[Result], syncs: list[Result]) -> str:
    """Return the section that compares the engines of `recipe.rollout.fast_inference`."""
    words = (
        "### Engines side by side\n\nSpeed of each engine in tokens per CPU-second, with the same "
        "model and adapter (`python -m benchmarks.rollout --engines`; `rollout_engines.json`). The "
        "number in brackets is the engine's CPU time divided by the CPU time of `native`, "
        "which is Tunesmith's own engine. `vllm` is the CPU build of vLLM.\n"
    )
    cells = {
        (row["dtype"], row["rows"], row["prompt_tokens"]): date(row)
        for row in results
        if "rows" in row
    }
    speeds = {
        (row["engine"], row["dtype"], row["rows"], row["prompt_tokens"]): row
        for row in results
        if "rows" in row
    }
    rows = [
        (
            f"{cell[0]}, {cell[1]} x {cell[2]}",
            *(_speed(speeds.get((engine, *cell))) for engine in ENGINES),
            day,
        )
        for cell, day in cells.items()
    ]
    first = table(("dtype, rows x prompt tokens", *ENGINES, "date"), rows)
    about = (
        "Ways to load a new adapter into an engine, and the speed of 8 rows afterwards (`--sync`; "
        "`rollout_sync.json`). `fold` writes merged weights into the training weights, and "
        "restores the training weights after the rollout. `merged` and `vllm-merged` write merged "
        "weights into the engine's copy of the model; Tunesmith uses these two ways. With "
        "`vllm-lora`, vLLM applies the adapter's matrices A and B at each token.\n"
    )
    ways = [
        (
            f"{row['way']}, {row['dtype']}",
            f"{row['sync_cpu_seconds'] * 1000:.0f} ms",
            f"{row['bytes'] / 1e6:.0f} MB",
            f"{row['tokens_per_cpu_second']:,.0f}",
            date(row),
        )
        for row in syncs
    ]
    head = ("way", "CPU time of a sync", "bytes", "tokens per CPU-second", "date")
    return f"{words}\n{first}\n{about}\n{table(head, ways)}"


def _speed(row: Result | None) -> str:
    if row is None:
        return NOT_MEASURED
    return f"{row['tokens_per_cpu_second']:,.0f} ({row['over_native']:.1f})"

"""Sections of the GRPO results."""

from __future__ import annotations

from .cpu import DTYPES
from .tables import NOT_MEASURED, Result, against_bar, date, table, verdict, versions


def grpo(results: list[Result]) -> str:
    words = (
        "## GRPO\n\n"
        "Training steps compared with stock TRL: a 12.4 M Llama, LoRA r 32, 2 prompts x 8 "
        "completions, no recomputation (`python -m benchmarks.grpo`; `grpo.json`). Ragged "
        "completions have 16 to 128 tokens; all other completions have 128 tokens. `LoRA` is the "
        "speed of LoRA relative to "
        "our full tuning. `other` is the share of our step that is neither generation nor "
        "forward nor backward.\n"
    )
    if not results:
        return words + "\n**Open**: no result of `python -m benchmarks.grpo` yet.\n"
    rows = (
        (
            _case(row),
            against_bar(row["speed_ratio"], row["speed_bar"], at_least=True),
            against_bar(row["generation_ratio"], row["generation_bar"], at_least=True),
            against_bar(row["memory_ratio"], row["memory_bar"], at_least=False),
            NOT_MEASURED if row["lora_over_full"] is None else f"{row['lora_over_full']:.2f}x",
            f"{row['beside_share']:.1%}" if "beside_share" in row else NOT_MEASURED,
            f"{row['parity']['gradient_difference']:.1e}",
        )
        for row in results
    )
    head = ("case", "speed", "generation", "memory", "LoRA", "other", "gradient difference")
    last = results[0]
    return "\n".join(
        [
            words,
            table(head, rows),
            f"{last['cpu']}; {versions(last)}; {date(last)}.\n",
        ]
    )


def learning(results: list[Result], by_vllm: list[Result]) -> str:
    """Return the section on learning. `by_vllm`: results with `--engine vllm`."""
    words = (
        "## GRPO learns\n\n"
        "A job trains the small model tiny-math-flat on questions with numeric answers "
        "(`python -m benchmarks.grpo_learns`; `grpo_learns.json`).\n"
    )
    if not results:
        return words + "\n**Open**: no result yet.\n"
    row = results[-1]
    bars = row["bars"]
    rows = (
        (
            run["seed"],
            f"{row['before']:.3f}",
            _at_least(run["after"], bars["after_each"]),
            f"{run['cpu_seconds']:.0f}",
            _below(run["wall_seconds"], bars["wall_seconds"]),
        )
        for run in row["runs"]
    )
    head = ("seed", "pass@1 before", f"after {row['steps']} steps", "CPU-seconds", "wall seconds")
    mean = _at_least(row["after_mean"], bars["after"])
    return "\n".join(
        [
            words,
            table(head, rows),
            f"Mean pass@1 after training: {mean}. "
            f"Cores: {row['cores']}, load: {row['load_average']}.\n",
            _beside_stock(row, bars["stock_difference"]),
            f"{row['cpu']}; {date(row)}.\n",
            _by_vllm(by_vllm),
        ]
    )


def _by_vllm(results: list[Result]) -> str:
    if not results:
        return "**Open**: no result with `--engine vllm` yet.\n"
    rows = (
        (
            row["engine"],
            run["seed"],
            _at_least(run["after"], row["bars"]["after_each"]),
            f"{run['cpu_seconds']:.0f}",
            date(row),
        )
        for row in results
        for run in row["runs"]
    )
    head = ("engine", "seed", f"after {results[0]['steps']} steps", "CPU-seconds", "date")
    return (
        "The same job with vLLM (CPU build), which runs in the trainer's process or as a server "
        "(`--engine vllm`; `grpo_learns_vllm.json`). CPU-seconds exclude vLLM's server.\n\n"
        + table(head, rows)
    )


def _beside_stock(row: Result, bar: float) -> str:
    if "stock_last" not in row:
        return "**Open**: no comparison with stock TRL (`--stock`) yet.\n"
    pairs = zip(row["ours_last"], row["stock_last"], strict=True)
    apart = row["difference"]
    return (
        "Mean reward of the last 10 steps for each seed, ours / stock TRL (the two trainers sample "
        "different completions): "
        + ", ".join(f"{ours:.3f} / {stock:.3f}" for ours, stock in pairs)
        + f"; difference of the means: {apart:+.3f}"
        + verdict(abs(apart) <= bar, f"{bar:g}")
        + ".\n"
    )


def _at_least(share: float, bar: float) -> str:
    return f"{share:.3f}" + verdict(share >= bar, f"{bar:g}")


def _below(seconds: float, bar: float) -> str:
    return f"{seconds:.0f}" + verdict(seconds <= bar, f"{bar:g}")


def _case(row: Result) -> str:
    dtype, ragged = DTYPES[row["dtype"]], ", ragged" if row["ragged"] else ""
    kind = "" if row["tuning"] == "lora" else ", full"
    allocator = ", our malloc options for both" if row["their_allocator"] else ""
    return f"{dtype}, {row['prompt_tokens']}-token prompts{ragged}{kind}{allocator}"

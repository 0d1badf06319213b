"""Sections of the GRPO results."""

from __future__ import annotations

from collections.abc import Mapping

from .cpu import DTYPES
from .tables import NOT_MEASURED, Result, against_bar, date, table, verdict, versions


def grpo(results: list[Result]) -> str:
    words = (
        "## GRPO\n\n"
        "Whole steps against stock TRL's, CPU-seconds of one thread: a 12.4 M Llama, LoRA r 32, 2 "
        "prompts x 8 completions, no recomputation (`python -m benchmarks.grpo`; `grpo.json`). "
        "Ragged: completions of 16 to 128 tokens, otherwise 128. LoRA: speed of LoRA / our full "
        "tuning. Other: share of our step outside generation, forward and backward.\n"
    )
    if not results:
        return words + "\n**Open**: no result of `python -m benchmarks.grpo` yet.\n"
    rows = (
        (
            _case(one),
            against_bar(one["speed_ratio"], one["speed_bar"], at_least=True),
            against_bar(one["generation_ratio"], one["generation_bar"], at_least=True),
            against_bar(one["memory_ratio"], one["memory_bar"], at_least=False),
            NOT_MEASURED if one["lora_over_full"] is None else f"{one['lora_over_full']:.2f}x",
            f"{one['beside_share']:.1%}" if "beside_share" in one else NOT_MEASURED,
            f"{one['parity']['gradient_difference']:.1e}",
            len(one["speed_ratios"]),
            one["load_average"],
        )
        for one in results
    )
    head = ("case", "speed", "generation", "memory", "LoRA", "other", "gradient difference",
            "rounds", "load of the 2 cores")  # fmt: skip
    times = (
        (
            _case(one),
            _split(one["phases"]["ours"]),
            _split(one["phases"]["theirs"]),
            " / ".join(f"{rate:,.0f}" for rate in one["generated_per_cpu_second"]),
        )
        for one in results
    )
    seconds = ("case", "ours: generate, forward, backward, rest", "theirs",
               "generated tokens per CPU-second")  # fmt: skip
    last = results[0]
    return "\n".join(
        [
            words,
            table(head, rows),
            "CPU-seconds of a step:\n",
            table(seconds, times),
            f"{last['cpu']}; {versions(last)}; {date(last)}.\n",
        ]
    )


def learning(results: list[Result]) -> str:
    words = (
        "## GRPO learns\n\n"
        "tiny-math-flat through the API, LoRA r 16, 16 prompts x 8 completions, graded by the "
        "number in the answer (`python -m benchmarks.grpo_learns`; `grpo_learns.json`). pass@1 on "
        "held-out rows, 8 completions each at temperature 1.\n"
    )
    if not results:
        return words + "\n**Open**: no result yet.\n"
    one = results[-1]
    bars = one["bars"]
    rows = (
        (
            run["seed"],
            f"{one['before']:.3f}",
            _at_least(run["after"], bars["after_each"]),
            f"{run['cpu_seconds']:.0f}",
            _below(run["wall_seconds"], bars["wall_seconds"]),
        )
        for run in one["runs"]
    )
    head = ("seed", "pass@1 before", f"after {one['steps']} steps", "CPU-seconds", "wall seconds")
    mean = _at_least(one["after_mean"], bars["after"])
    return "\n".join(
        [
            words,
            table(head, rows),
            f"Mean after: {mean}. Cores: {one['cores']}, load: {one['load_average']}.\n",
            _beside_stock(one, bars["stock_difference"]),
            f"{one['cpu']}; {versions(one)}; {date(one)}.\n",
        ]
    )


def _beside_stock(one: Result, bar: float) -> str:
    if "stock_last" not in one:
        return "**Open**: no comparison with stock TRL (`--stock`) yet.\n"
    pairs = zip(one["ours_last"], one["stock_last"], strict=True)
    apart = one["difference"]
    return (
        "Mean reward of the last 10 steps, each with its own sampling, ours / stock TRL's by seed: "
        + ", ".join(f"{ours:.3f} / {stock:.3f}" for ours, stock in pairs)
        + f"; difference of the means: {apart:+.3f}"
        + verdict(abs(apart) <= bar, f"{bar:g}")
        + ".\n"
    )


def _at_least(share: float, bar: float) -> str:
    return f"{share:.3f}" + verdict(share >= bar, f"{bar:g}")


def _below(seconds: float, bar: float) -> str:
    return f"{seconds:.0f}" + verdict(seconds <= bar, f"{bar:g}")


def _case(one: Result) -> str:
    dtype, ragged = DTYPES[one["dtype"]], ", ragged" if one["ragged"] else ""
    kind = "" if one["tuning"] == "lora" else ", full"
    allocator = ", our allocator for both" if one["their_allocator"] else ""
    return f"{dtype}, {one['prompt_tokens']}-token prompts{ragged}{kind}{allocator}"


def _split(phases: Mapping[str, float]) -> str:
    rest = phases["score"] + phases["other"]
    named = [phases[name] for name in ("generate", "forward", "backward")]
    return " / ".join(f"{one:.2f}" for one in [*named, rest])

"""Sections on model families: speed, and memory predictions."""

from __future__ import annotations

from .tables import Result, date, verdict, versions

MIB = 2**20

HALVES = {"attention_block": "attention", "mlp_block": "MLP"}


def family_speeds(result: Result | None) -> str:
    words = (
        "## Speed by family\n\n"
        "Training of tiny random models against stock TRL, packed, in fp32 with LoRA r 32, on the "
        "rows of the comparison above (`python -m benchmarks.families`; `families.json`). The "
        "models have 4 layers and a hidden size of 256; a step has one pack of 1,024 tokens. Speed "
        "is relative to stock, in tokens per CPU-second of one thread; median of three rounds.\n"
    )
    if result is None:
        return words + "\n**Open**: no result of `python -m benchmarks.families` yet.\n"
    bars, families, fast = result["bars"], result["families"], result["fast"]
    reached = (
        f"{len(fast)} of {len(families)} families are at least {bars['speed_ratio']:g}x as fast"
    )
    loss = f"losses differ by at most {result['worst_loss_difference']:.1e}"
    speeds: dict[str, list[str]] = {}
    for family in sorted(families, key=lambda family: -float(family["speed_ratio"])):
        patched = family["patched"].split(";")[0]
        halves = " and ".join(name for key, name in HALVES.items() if key in patched)
        speed = f"`{family['model_type']}` {family['speed_ratio']:.2f}x"
        speeds.setdefault(halves, []).append(speed)
    lists = [f"- **{halves} by our kernels**: {', '.join(of)}" for halves, of in speeds.items()]
    return (
        f"{words}\n{reached}{verdict(len(fast) >= bars['families'], str(bars['families']))}; "
        f"{loss}{verdict(result['worst_loss_difference'] <= bars['loss_difference'], '1e-5')}. "
        f"{result['cpu']}, {versions(result)}; {date(result)}, commit {result['commit']}.\n\n"
        + "\n".join(lists)
        + "\n"
    )


def memory_families(result: Result | None) -> str:
    words = (
        "## Memory predictions by family\n\n"
        "Predicted and measured tensors at the peak of two steps on a CPU, for small random models "
        "of six families in three precisions, and in bf16 over an NF4 base "
        "(`python -m benchmarks.plan_families`; `plan_families.json`). The prediction follows the "
        "run's trial pass. A miss is silent if the run's own report does not state it.\n"
    )
    if result is None:
        return words + "\n**Open**: no result of `python -m benchmarks.plan_families` yet.\n"
    bars = result["bars"]
    bar = f"bar {bars['share']:.0%} or {bars['bytes'] / MIB:.0f} MiB, whichever is more"
    missed = f"{result['missed']} of {len(result['settings'])} missed, {result['silent']} silent"
    worst = f"{result['worst_error']:.1%} ({bar}: {missed})"
    return f"{words}\nWorst error: {worst}. {versions(result)}; {date(result)}.\n"

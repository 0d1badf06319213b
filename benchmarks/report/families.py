"""Sections on model families: speed, and memory predictions."""

from __future__ import annotations

from .tables import Result, date, verdict, versions

MIB = 2**20

HALVES = {"attention_block": "attention", "mlp_block": "MLP"}


def family_speeds(result: Result | None) -> str:
    words = (
        "## Speed by family\n\n"
        "Training of tiny random models with LoRA r 32 in fp32, compared with stock TRL, on rows "
        "of 32 to 768 tokens (`python -m benchmarks.families`; `families.json`). The models have 4 "
        "layers and a hidden size of 256; a step has one packed sequence of 1,024 tokens. Speed is "
        "our tokens per CPU-second divided by those of stock TRL: the median of three rounds, on "
        "one thread.\n"
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
    bar = f"{bars['families']} families"
    lists = [f"- **{halves} by our kernels**: {', '.join(of)}" for halves, of in speeds.items()]
    return (
        f"{words}\n{reached}{verdict(len(fast) >= bars['families'], bar)}; "
        f"{loss}{verdict(result['worst_loss_difference'] <= bars['loss_difference'], '1e-5')}. "
        f"{result['cpu']}, {versions(result)}; {date(result)}, commit {result['commit']}.\n\n"
        + "\n".join(lists)
        + "\n"
    )


def memory_families(result: Result | None) -> str:
    words = (
        "## Memory predictions by family\n\n"
        "Predicted and measured peak memory of tensors in two steps on a CPU "
        "(`python -m benchmarks.plan_families`; `plan_families.json`). Small random models of six "
        "families are trained in three precisions, and in bf16 with an NF4 base model. The "
        "prediction is made after a trial pass (one forward and backward pass before training). A "
        "prediction with an error above the bar counts as missed, and also as silent if the run's "
        "report does not mention the error.\n"
    )
    if result is None:
        return words + "\n**Open**: no result of `python -m benchmarks.plan_families` yet.\n"
    bars = result["bars"]
    bar = f"{bars['share']:.0%} or {bars['bytes'] / MIB:.0f} MiB, whichever is more"
    missed = f"{result['missed']} of {len(result['settings'])} predictions are missed"
    worst = f"The largest error is {result['worst_error']:.1%}. The bar is {bar}"
    counts = f"{missed}, and {result['silent']} of them are silent"
    return f"{words}\n{worst}. {counts}. {versions(result)}; {date(result)}.\n"

"""Write the sections on GPU results, one for each device.

Without results, the page lists what is not measured yet.
"""

from __future__ import annotations

from ..gpu.bars import BARS, judge, speed
from ..gpu.speed_plan import REAL, SETTINGS
from .tables import NOT_MEASURED, Result, date, table, versions

SIDES = {"ours": "ours", "stock": "stock TRL + PEFT", "liger": "Liger", "unsloth": "Unsloth"}

MAIN = ("tokens/s", "relative to stock", "relative to stock TRL")
"""Last words of the names of the main bars. If no GPU has been measured, the page lists the bars
whose names end with these words."""


def gpus(results: list[Result]) -> str:
    if not results:
        bars = judge({})
        return "\n".join(
            [
                "## GPUs\n",
                f"**Nothing has been measured on a GPU yet.** `python -m benchmarks.gpu` measures "
                f"{len(bars)} figures in one call: kernels, parity, speed, memory, precisions and "
                "GRPO. The main figures:\n",
                table(
                    ("figure", "bar"),
                    ((row["bar"], _bound(row)) for row in bars if row["bar"].endswith(MAIN)),
                ),
            ]
        )
    return "\n".join(_device(row) for row in results)


def _bound(bar: Result) -> str:
    if "at_least" in bar:
        return f"at least {bar['at_least']:,g}"
    return f"at most {bar['at_most']:,g}"


def _device(result: Result) -> str:
    plot = f"images/{slug(result)}-speed.svg"
    parts = [
        f"## {result['device']}\n",
        f"`python -m benchmarks.gpu`: {date(result)}, commit {result['commit']}, Python "
        f"{result['python']}, {versions(result)}.\n",
        _bars(result),
    ]
    if result.get("speed"):
        parts += [f"![Tokens per second]({plot})\n", _speed(result)]
        parts += _profiles(result)
    if result.get("kernels"):
        parts.append(_kernels(result))
    if result.get("parity"):
        parts.append(_parity(result))
    if result["errors"] or result["skipped"]:
        parts.append(_missing(result))
    return "\n".join(parts)


def slug(result: Result) -> str:
    return str(result["device"]).lower().replace(" ", "-")


def _bars(result: Result) -> str:
    words = {True: "met", False: "**missed**", None: "open"}
    rows = (
        (row["bar"], _bound(row), NOT_MEASURED if row["figure"] is None else f"{row['figure']:,g}",
         words[row["met"]])
        for row in judge(result)
    )  # fmt: skip
    assert len(BARS) == len(judge(result))
    return table(("figure", "bar", "measured", ""), rows)


def _speed(result: Result) -> str:
    rows = []
    for model in REAL:
        for setting in SETTINGS:
            base = speed(result, model, "stock", setting, "tokens_per_second")
            for side, name in SIDES.items():
                rate = speed(result, model, side, setting, "tokens_per_second")
                if rate is None:
                    continue
                peak = speed(result, model, side, setting, "peak_gib")
                ratio = NOT_MEASURED if base is None else f"{rate / base:.2f}x"
                rows.append((model, setting, name, f"{rate:,.0f}", ratio, f"{peak:.1f}"))
    words = (
        "Whole training steps with LoRA r 16 on all linear layers and random bf16 weights. In "
        "`no-recompute`, a micro-batch is one row of 4,096 tokens, and no activations are "
        "recomputed. In "
        "`defaults`, a step has 12 rows of 64 to 1,024 tokens, and each trainer keeps its "
        "defaults.\n"
    )
    head = ("model", "setting", "side", "tokens/s", "/ stock", "peak, GiB")
    return words + "\n" + table(head, rows)


def _profiles(result: Result) -> list[str]:
    return [
        f"Profile of `{case}`: the device was busy {row['device_busy_share']:.0%} of the time "
        f"({row['top_shown']}).\n\n```\n" + "\n".join(row["top"]) + "\n```\n"
        for case, row in result["speed"].items()
        if "top" in row
    ]


def _kernels(result: Result) -> str:
    kernels = result["kernels"]
    ceilings = kernels.get("ceilings", {})
    rows = [
        (
            case,
            f"{row['ms']['ours']:g}",
            f"{row['gb_per_s']:,g} GB/s"
            if "gb_per_s" in row
            else f"{row['tflop_per_s']:g} TFLOP/s",
            f"{row['ratio']:.0%}",
            "yes" if row["barred"] else "no",
            f"{row['speed_to_eager']:g}x" if "speed_to_eager" in row else NOT_MEASURED,
        )
        for case, row in kernels.items()
        if "ratio" in row
    ]
    words = (
        "Speed of our kernels in bf16, forward and backward. In the same run, the device copied "
        f"{ceilings.get('copy_gb_per_s', NOT_MEASURED)} GB/s and multiplied square matrices at "
        f"{ceilings.get('bf16_tflop_per_s', NOT_MEASURED)} TFLOP/s; these two rates are the upper "
        "limits (ceilings) of our kernels.\n"
    )
    head = (
        "shape/operation",
        "ms",
        "rate",
        "share of the ceiling",
        "has a bar",
        "eager time / ours",
    )
    return words + "\n" + table(head, rows)


def _parity(result: Result) -> str:
    rows = (
        (
            case,
            f"{row['worst']:.2g}",
            f"`{row['worst_tensor']}`",
            "yes" if row["passed"] else "NO",
        )
        for case, row in result["parity"].items()
    )
    words = (
        "Gradients of a model with our kernels, compared with the stock model. In fp32, `worst` is "
        "the largest relative difference of a gradient. In bf16, `worst` is our error divided by "
        "the error of the stock model.\n"
    )
    return words + "\n" + table(("model/dtype", "worst", "tensor", "within bounds"), rows)


def _missing(result: Result) -> str:
    rows = [(row["part"], row["case"], row["error"]) for row in result["errors"]]
    rows += [(row["part"], row["case"], row["why"]) for row in result["skipped"]]
    return "Failed or skipped cases:\n\n" + table(
        ("part", "case", "why"), ((part, case, why.replace("|", "/")) for part, case, why in rows)
    )

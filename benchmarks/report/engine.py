"""Sections on layouts, memory plan, precisions, resume points and self-check."""

from __future__ import annotations

import statistics

from .tables import NOT_MEASURED, Result, date, table, verdict, versions

MIB = 2**20
SHOWN = 3
"""Maximum number of rows that the page shows of a long table; the worst rows come first. The
results file has all rows."""


def layouts(result: Result | None) -> str:
    words = (
        "## The layout of a step\n\n"
        "`packing: auto` chooses padded, padding-free or packed micro-batches by a rule "
        "(`python -m benchmarks.layouts`; `layouts.json`). `slower` is the extra CPU time of the "
        "chosen layout relative to the fastest layout. `cost` is the time of the layout rule as a "
        "share of the time of 200 steps.\n"
    )
    if result is None:
        return words + _open("layouts")
    bars = result["bars"]
    worst = ", ".join(f"{name} {_bound(result[name], bars[name])}" for name in ("slower", "cost"))
    rows = (
        (
            row["model"],
            row["lengths"],
            row["rows"],
            row["chosen"],
            row["fastest"],
            f"{row['slower']:.1%}",
            f"{row['cost']:.1%}",
        )
        for row in sorted(result["cells"], key=lambda row: (-row["slower"], -row["cost"]))[:SHOWN]
    )
    head = ("model", "row lengths", "rows", "chosen", "fastest", "slower", "cost")
    return f"{words}\nWorst of {len(result['cells'])}: {worst}. {_setup(result)}\n\n" + table(
        head, rows
    )


def memory_plan(result: Result | None) -> str:
    words = (
        "## The memory plan\n\n"
        "Predicted and measured peak memory of a step on a CPU (`python -m benchmarks.plan`; "
        "`plan.json`). `error` is the error of the predicted memory of tensors. A trial pass "
        "corrects the prediction; `error after the trial` is the error of the corrected "
        "prediction. `error of resident memory` compares the corrected prediction with the growth "
        "of the process's resident memory. Held-out settings were not used to develop the "
        "prediction. `Worst` is the largest error of the settings that are not held out.\n"
    )
    if result is None:
        return words + _open("plan")
    bars = result["bars"]
    worst = f"tensors {_bound(result['worst_error'], bars['tensors'])}"
    if result["worst_rss_error"] is not None:
        worst += f", resident {_bound(result['worst_rss_error'], bars['rss'])}"
    if held_out := [abs(row["rss_error"]) for row in result["settings"] if row.get("held_out")]:
        worst += f"; held-out settings: resident {_bound(max(held_out), bars['rss'])}"
    rows = (
        (
            f"{row['tuning']}, {row['rows']} x {row['length']}"
            + (", held out" if row.get("held_out") else ""),
            {True: "all", False: "none"}.get(row["checkpointing"], row["checkpointing"]),
            f"{row['predicted'] / MIB:,.1f}",
            f"{row['tensors'] / MIB:,.1f}",
            f"{row['error']:+.1%}",
            f"{row['corrected_error']:+.1%}",
            NOT_MEASURED if row["rss_error"] is None else f"{row['rss_error']:+.1%}",
        )
        for row in sorted(result["settings"], key=_memory_error, reverse=True)[:SHOWN]
    )
    head = ("setting", "recomputed", "predicted, MiB", "measured, MiB", "error",
            "error after the trial", "error of resident memory")  # fmt: skip
    return f"{words}\nWorst: {worst}. {_setup(result)}\n\n" + table(head, rows)


def _memory_error(row: Result) -> float:
    return max(abs(float(row["error"])), abs(float(row["rss_error"] or 0.0)))


def precisions(results: list[Result]) -> str:
    """Write the section on precisions from the newest result for the loss and the newest result for
    the cost of the optimizer. Results files list the newest run first."""
    words = (
        "## Precisions of full tuning\n\n"
        "Loss and optimizer cost of each `recipe.precision`, on the same rows in the same order "
        "(`python -m benchmarks.precision`; `precision.json`).\n"
    )
    parts = [words]
    loss, cost = (next((row for row in results if name in row), None) for name in ("loss", "cost"))
    if loss is None:
        parts.append(_open("precision --only loss"))
    else:
        parts.append(
            f"{loss['loss']['steps']} steps of tiny-math on GSM8K; loss on held-out "
            f"rows. {_setup(loss)}\n"
        )
        rows = (
            (
                f"`{name}`",
                f"{row['valid_loss']:.5f}",
                NOT_MEASURED if name == "fp32" else _signed_bound(row),
                NOT_MEASURED
                if row["updates_lost_fraction"] is None
                else f"{row['updates_lost_fraction']:.2%}",
            )
            for name, row in loss["loss"]["runs"].items()
        )
        parts.append(table(("precision", "loss", "relative to fp32", "updates lost"), rows))
    if cost is None:
        parts.append(_open("precision --only cost"))
    else:
        row = cost["cost"]
        parts.append(f"Optimizer steps on {row['parameters']:,} parameters. {_setup(cost)}\n")
        rows_of_cost = (
            (
                f"`{name}`",
                f"{bytes_:.2f}"
                + verdict(bytes_ <= row["bytes_bars"][name], f"{row['bytes_bars'][name]:g}"),
                f"{row['times_fp32'][name]:.1f}x",
                _bound(row["extra_share_of_step"][name], row["extra_share_bar"])
                if name == "bf16_split_master"  # the default, which has a bar
                else f"{row['extra_share_of_step'][name]:.1%}",
            )
            for name, bytes_ in row["bytes_per_parameter"].items()
        )
        head = ("precision", "bytes per parameter", "CPU time of the optimizer / fp32",
                "extra share of a step")  # fmt: skip
        parts.append(table(head, rows_of_cost))
    return "\n".join(parts)


def resume_points(result: Result | None) -> str:
    words = (
        "## Resume points\n\n"
        "Cost of resume points at the default interval, on one thread of a CPU "
        "(`python -m benchmarks.checkpoint MODEL ROWS`; `checkpoint.json`). The cost is measured "
        "in two ways: the share of the time in which training waits, and the share of the "
        "CPU-seconds. The CPU-seconds include the thread that writes the files.\n"
    )
    if result is None:
        return words + _open("checkpoint")
    rows = (
        (
            row["model"],
            row["tuning"],
            f"{row['bytes'] / 2**20:.1f}",
            row["points"],
            f"{statistics.median(row['blocked_ms']):.0f}",
            f"{statistics.median(row['cpu_ms']):.0f}",
            _share(row["wall"], result["bar"]),
            _share(row["cpu"], result["bar"]),
        )
        for row in result["runs"]
    )
    head = (
        "model",
        "tuning",
        "MiB",
        "points",
        "wait, ms",
        "CPU, ms",
        "share of time",
        "share of CPU",
    )
    return f"{words}\n{table(head, rows)}\n{_setup(result)}\n"


def _share(value: float, bar: float) -> str:
    return f"{value:.2%}" + verdict(value <= bar, f"{bar:.0%}")


def self_check(result: Result | None) -> str:
    words = (
        "## The self-check\n\n"
        "CPU time of the checks before the first step, compared with 200 steps (`python -m "
        "benchmarks.self_check`; `self_check.json`). Bar: 3 s or 3 % of 200 steps, whichever is "
        "greater.\n"
    )
    if result is None:
        return words + _open("self_check")
    cases = result["cases"]
    slowest = max(cases, key=lambda name: float(cases[name]["self_check"]))
    largest = max(cases, key=lambda name: float(cases[name]["share_of_200"]))
    met = verdict(all(case["within"] for case in cases.values()), "3 s or 3 %")
    versions = {name: result[name] for name in ("torch", "transformers")}
    return (
        f"{words}\nLongest of {len(cases)} runs: {cases[slowest]['self_check']:.2f} s "
        f"({slowest}); largest share: {cases[largest]['share_of_200']:.1%} ({largest}){met}. "
        f"{_setup(result | {'versions': versions})}\n"
    )


def _bound(value: float, bar: float) -> str:
    return f"{value:.1%}" + verdict(value <= bar, f"{bar:.0%}")


def _signed_bound(row: Result) -> str:
    value, bar = row["relative_to_fp32"], row["bar"]
    return f"{value:+.3%}" + ("" if bar is None else verdict(abs(value) <= bar, f"{bar:.1%}"))


def _open(module: str) -> str:
    return f"\n**Open**: no result of `python -m benchmarks.{module}` yet.\n"


def _setup(result: Result) -> str:
    return f"{result.get('cpu', 'CPU not recorded')}, {versions(result)}; {date(result)}."

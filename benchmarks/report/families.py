"""Section on memory predictions over model families."""

from __future__ import annotations

from .tables import Result, date, table, versions

MIB = 2**20
SHOWN = 4
"""Number of settings on the page, worst first. The results file has all settings."""


def memory_families(result: Result | None) -> str:
    words = (
        "## Memory predictions by family\n\n"
        "Predicted and measured tensors at the peak of two steps on a CPU, for small random models "
        "of six families in three precisions (`python -m benchmarks.plan_families`; "
        "`plan_families.json`). The prediction follows the run's trial pass.\n"
    )
    if result is None:
        return words + "\n**Open**: no result of `python -m benchmarks.plan_families` yet.\n"
    cases = sorted(result["settings"], key=lambda case: -abs(float(case["error"])))
    bars = result["bars"]
    bar = f"bar {bars['share']:.0%} or {bars['bytes'] / MIB:.0f} MiB, whichever is more"
    worst = f"{result['worst_error']:.1%} ({bar}: {result['missed']} of {len(cases)} missed)"
    rows = (
        (
            f"{case['family']}, {case['size']}",
            case["tuning"],
            f"`{case['precision']}`",
            f"{case['predicted'] / MIB:,.1f}",
            f"{case['tensors'] / MIB:,.1f}",
            f"{case['error']:+.1%}",
        )
        for case in cases[:SHOWN]
    )
    head = ("model", "tuning", "precision", "predicted, MiB", "measured, MiB", "error")
    setup = f"{versions(result)}; {date(result)}."
    return f"{words}\nWorst: {worst}. {setup}\n\n" + table(head, rows)

"""What the memory planner said of a run, read back from its report: what keeping all activations
would take and cost. Does not import torch: the supervisor judges too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from tunesmith_schema import RunReport

NAME = "memory_plan"
"""Of the choice (engine/memory/describe.py)."""


@dataclass(frozen=True, kw_only=True)
class KeepAllEstimate:
    peak_bytes: int
    budget_bytes: int
    fits: bool
    saved: float
    """Share of a step's time that the plan in force takes more."""


def keep_all_estimate(report: RunReport) -> KeepAllEstimate | None:
    """None where nothing was planned, or where memory ran out after all: then the prediction was
    wrong, and nothing is to be built on it."""
    for choice in report.choices:
        if choice.name != NAME or choice.reason.startswith("out of memory"):
            continue
        alternatives = choice.figures.get("alternatives")
        for one in alternatives if isinstance(alternatives, list) else []:
            if isinstance(one, dict) and one["name"] == "keep":
                cost = _number(choice.figures["predicted_cost"])
                return KeepAllEstimate(
                    peak_bytes=int(_number(one["predicted_peak_bytes"])),
                    budget_bytes=int(_number(choice.figures["budget_bytes"])),
                    fits=bool(one["fits"]),
                    saved=1 - _number(one["predicted_cost"]) / cost,
                )
    return None


def _number(value: JsonValue) -> float:
    assert isinstance(value, int | float), f"as engine/memory/describe.py writes it, not {value!r}"
    return float(value)


def gib(number: int) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"

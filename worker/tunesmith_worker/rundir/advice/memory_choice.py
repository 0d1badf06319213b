"""Read the memory planner's estimate for keeping all activations from a run report."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from tunesmith_schema import RunReport

NAME = "memory_plan"
"""Name of the memory planner's choice in the run report; the same name as in
engine/memory/describe.py."""


@dataclass(frozen=True, kw_only=True)
class KeepAllEstimate:
    peak_bytes: int
    budget_bytes: int
    fits: bool
    saved: float
    """Estimated share of step time that keeping all activations would save."""


def keep_all_estimate(report: RunReport) -> KeepAllEstimate | None:
    """Return the estimate for a run that keeps all activations. Return None if the report has no
    memory plan, or if the memory ran out in spite of the plan."""
    for choice in report.choices:
        if choice.name != NAME or choice.reason.startswith("out of memory"):
            continue
        alternatives = choice.figures.get("alternatives")
        for option in alternatives if isinstance(alternatives, list) else []:
            if isinstance(option, dict) and option["name"] == "keep":
                cost = _number(choice.figures["predicted_cost"])
                return KeepAllEstimate(
                    peak_bytes=int(_number(option["predicted_peak_bytes"])),
                    budget_bytes=int(_number(choice.figures["budget_bytes"])),
                    fits=bool(option["fits"]),
                    saved=1 - _number(option["predicted_cost"]) / cost,
                )
    return None


def _number(value: JsonValue) -> float:
    assert isinstance(value, int | float), f"a figure of the memory plan is not a number: {value!r}"
    return float(value)


def gib(number: int) -> str:
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"

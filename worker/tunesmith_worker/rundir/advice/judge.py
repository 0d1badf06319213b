"""A report, judged: phases in order, what bounds it, what would help. Does not import torch."""

from __future__ import annotations

from tunesmith_schema import Advice, Bound, BoundBy, PhaseName, RunReport, Saturation

from .bound import find_bound
from .rules import choose_advice

_ORDER: dict[str, int] = {name: place for place, name in enumerate(PhaseName)}


def empty_report(attempt: int, started_at: float) -> RunReport:
    """Of which nothing is known but when it began (unix seconds)."""
    return RunReport(
        attempt=attempt,
        started_at=started_at,
        wall_seconds=0.0,
        bound=Bound(by=BoundBy.UNKNOWN, text="nothing is known yet"),
        saturation=Saturation(state="not_measured", text="not measured: no step has been done"),
        advice=Advice(rule="none", text="nothing is known yet"),
    )


def complete_report(report: RunReport) -> RunReport:
    """The report with all that follows from its figures. What the phases leave of the wall time
    is `other`."""
    phases = dict(report.phases)
    missing = report.wall_seconds - sum(phases.values())
    phases["other"] = max(0.0, phases.get("other", 0.0) + missing)
    ordered = sorted(phases.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER)))
    report.phases = {name: round(seconds, 4) for name, seconds in ordered}
    report.wall_seconds = round(report.wall_seconds, 4)
    report.bound, report.advice = find_bound(report), choose_advice(report)
    return report

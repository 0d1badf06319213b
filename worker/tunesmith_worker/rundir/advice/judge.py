"""Complete a run report: sort its phases, and add bottleneck and advice."""

from __future__ import annotations

from tunesmith_schema import Advice, Bound, BoundBy, PhaseName, RunReport, Saturation

from .bound import find_bound
from .rules import choose_advice

_ORDER: dict[str, int] = {name: index for index, name in enumerate(PhaseName)}


def empty_report(attempt: int, started_at: float) -> RunReport:
    """Return a report without data. `started_at`: Unix time in seconds."""
    return RunReport(
        attempt=attempt,
        started_at=started_at,
        wall_seconds=0.0,
        bound=Bound(by=BoundBy.UNKNOWN, text="no data yet"),
        saturation=Saturation(state="not_measured", text="not measured: no step is done"),
        advice=Advice(rule="none", text="no data yet"),
    )


def complete_report(report: RunReport) -> RunReport:
    """Add bottleneck, advice and the phase `other` (the remaining wall time) to the report."""
    phases = dict(report.phases)
    missing = report.wall_seconds - sum(phases.values())
    phases["other"] = max(0.0, phases.get("other", 0.0) + missing)
    ordered = sorted(phases.items(), key=lambda item: _ORDER.get(item[0], len(_ORDER)))
    report.phases = {name: round(seconds, 4) for name, seconds in ordered}
    report.wall_seconds = round(report.wall_seconds, 4)
    report.bound, report.advice = find_bound(report), choose_advice(report)
    return report

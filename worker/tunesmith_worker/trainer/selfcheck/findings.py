"""Outcomes and findings of checks, and their report to the user.

A warning becomes an event. An error ends the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog

REPORT_HINT = "Report the fault with the job's events: no recipe setting causes the fault."
"""Hint for faults in our own code."""


@dataclass(frozen=True)
class Finding:
    """A fault that a check or a tripwire detected."""

    check: str
    """Name of the check, as in docs/explanation/self-check.md."""
    message: str
    """Description of the fault, with the measured value and the tolerance."""
    hint: str
    """How the user can correct the fault."""
    level: Literal["error", "warn"] = "error"
    param: str | None = None
    """Dotted name of the request field that causes the fault."""
    category: ErrorCategory = ErrorCategory.USER


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one check."""

    check: str
    state: Literal["passed", "failed", "not_applicable", "skipped"]
    detail: str
    """The measured value, or the reason why the check did not run."""
    findings: tuple[Finding, ...] = ()


def report_findings(findings: Iterable[Finding], events: EventLog, step: int | None) -> None:
    """Write each warning as an event; raise RunError with the messages of all errors.

    `step`: number of finished optimizer steps; None before the first.
    """
    findings = list(findings)
    when = "Self-check before the first step" if step is None else f"Step {step}"
    for finding in findings:
        if finding.level == "warn":
            events.message(
                f"{when}: {finding.check}: {finding.message} {finding.hint}",
                level="warn",
                data={"check": finding.check, "step": step},
            )
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        raise RunError(
            ErrorCode.SELF_CHECK_FAILED,
            f"{when}: " + " Also ".join(f"{error.check}: {error.message}" for error in errors),
            category=errors[0].category,
            hint=errors[0].hint,
            param=errors[0].param,
        )


def passed(check: str, detail: str, *findings: Finding) -> Outcome:
    """Return a passed outcome; `findings` are warnings."""
    return Outcome(check=check, state="passed", detail=detail, findings=findings)


def not_applicable(check: str, why: str) -> Outcome:
    return Outcome(check=check, state="not_applicable", detail=why)


def make_outcome(check: str, findings: Sequence[Finding], detail: str) -> Outcome:
    """Return a failed outcome if any finding is an error, else a passed one."""
    state: Literal["passed", "failed"] = "passed"
    if any(finding.level == "error" for finding in findings):
        state = "failed"
    return Outcome(check=check, state=state, detail=detail, findings=tuple(findings))

"""What a check or a tripwire has found wrong, and how that reaches the user: a warning is told, an
error ends the run. Knows no check.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog


@dataclass(frozen=True)
class Finding:
    check: str
    """Stable name of the check, as docs/explanation/self-check.md has it."""
    message: str
    """What is wrong, with the number and the tolerance."""
    hint: str
    """What to do."""
    level: Literal["error", "warn"] = "error"
    param: str | None = None
    """The request's field it is about, dotted."""
    category: ErrorCategory = ErrorCategory.USER


def settle(findings: Iterable[Finding], events: EventLog, step: int | None) -> None:
    """Tell the warnings as events; raise RunError for the first error, with all errors in its
    message. `step`: optimiser steps done; None before the first."""
    findings = list(findings)
    when = "Self-check before the first step" if step is None else f"Step {step}"
    for one in findings:
        if one.level == "warn":
            events.message(
                f"{when}: {one.check}: {one.message} {one.hint}",
                level="warn",
                data={"check": one.check, "step": step},
            )
    errors = [one for one in findings if one.level == "error"]
    if errors:
        raise RunError(
            ErrorCode.SELF_CHECK_FAILED,
            f"{when}: " + " Also ".join(f"{one.check}: {one.message}" for one in errors),
            category=errors[0].category,
            hint=errors[0].hint,
            param=errors[0].param,
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    check: str
    state: Literal["passed", "failed", "not_applicable", "skipped"]
    detail: str
    """The figure that it passed with, or why it did not run."""
    findings: tuple[Finding, ...] = ()


def passed(check: str, detail: str, *findings: Finding) -> Outcome:
    """`findings`: warnings."""
    return Outcome(check=check, state="passed", detail=detail, findings=findings)


def not_applicable(check: str, why: str) -> Outcome:
    return Outcome(check=check, state="not_applicable", detail=why)


def judged(check: str, findings: Sequence[Finding], detail: str) -> Outcome:
    """Failed if any finding is an error."""
    state: Literal["passed", "failed"] = "passed"
    if any(one.level == "error" for one in findings):
        state = "failed"
    return Outcome(check=check, state=state, detail=detail, findings=tuple(findings))

"""The self-check before the first step: cheap checks, then checks that run the model on a sample of
the data.

The self-check leaves the model and the trainer unchanged, bit for bit. `supervised_checks` lists
the checks of supervised runs; `rollout_checks.reinforcement_checks` lists the checks of
reinforcement runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import JsonValue

from tunesmith_schema import ErrorCategory, PhaseName
from tunesmith_worker.engine.memory.describe import format_bytes
from tunesmith_worker.engine.model.adapters import adapter_dtype, predict_bytes
from tunesmith_worker.rundir.events import EventLog

from .check_context import CheckContext, SupervisedContext
from .findings import Finding, Outcome, make_outcome, passed, report_findings
from .labels import check_answers, check_end_token, check_labels
from .numerics import check_numerics
from .parameters import check_embeddings, check_optimizer, check_trained_parameters, check_weights

AnyContext = TypeVar("AnyContext", bound=CheckContext)
PROBE_BYTES = 4096
RESUME_POINTS = 2
"""Maximum number of resume points on disk: the newest complete resume point, and a resume point in
progress."""
MARGIN = 1.1
"""Factor by which predicted bytes are multiplied, to cover the file system's overhead."""
_DIRECTORY = "checkpoint_directory"


@dataclass(frozen=True, kw_only=True)
class Checks(Generic[AnyContext]):
    cheap: Sequence[Callable[[AnyContext], Outcome]]
    """Checks that do not run the model. All cheap checks run, even if one fails."""
    numeric: Callable[[AnyContext], list[Outcome]]
    """The checks that run the model."""


def supervised_checks() -> Checks[SupervisedContext]:
    return Checks(
        cheap=(
            check_labels,
            check_answers,
            check_end_token,
            check_trained_parameters,
            check_optimizer,
            check_weights,
            check_embeddings,
            check_longest_batch,
            check_directory,
        ),
        numeric=check_numerics,
    )


def self_check(context: AnyContext, events: EventLog, checks: Checks[AnyContext]) -> None:
    """Run all checks. Raise RunError if any check fails."""
    if not context.recipe.self_check:
        return
    began = time.perf_counter()
    with events.phase(PhaseName.SELF_CHECK):
        outcomes = [check(context) for check in checks.cheap]
        _report(outcomes, events)
        numeric = checks.numeric(context)
        _report(numeric, events)
        outcomes += numeric
    _write_summary(outcomes, events, time.perf_counter() - began)


def check_longest_batch(context: SupervisedContext) -> Outcome:
    """Check `longest_batch`: always passes, because the trial pass that measures memory has already
    run the longest batch."""
    batch = context.memory.planner.batch.part(context.memory.steps.policy.parts)
    return passed("longest_batch", f"a trial pass with {batch.tokens:,} tokens fitted into memory")


def check_directory(context: CheckContext) -> Outcome:
    """Check `checkpoint_directory`: the directory is writable, and the disk has enough space."""
    folder = context.folder / "checkpoints"
    probe = folder / ".self-check.part"
    try:
        folder.mkdir(exist_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):  # the test file may not exist
            probe.unlink()
        return make_outcome(_DIRECTORY, [_not_writable(error)], "")
    needed, free = int(MARGIN * predicted_bytes(context)), shutil.disk_usage(folder).free
    findings = []
    if free < needed:
        findings.append(
            Finding(
                _DIRECTORY,
                f"the disk has {format_bytes(free)} free, but the result and {RESUME_POINTS} "
                f"resume points need {format_bytes(needed)} (including a margin of "
                f"{MARGIN - 1:.0%}).",
                "Free space in the worker's data directory, then start the job again.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    return make_outcome(
        _DIRECTORY, findings, f"{format_bytes(needed)} needed, {format_bytes(free)} free"
    )


def predicted_bytes(context: CheckContext) -> int:
    """Return the bytes of the result and of the resume points (weights and optimizer state)."""
    model = context.model
    weights: int = sum(p.numel() * p.itemsize for p in model.parameters() if p.requires_grad)
    state = weights + context.optimizer_bytes
    if context.full:
        return weights + RESUME_POINTS * state
    return predict_bytes(model, adapter_dtype(context.recipe)) + RESUME_POINTS * state


def _not_writable(error: OSError) -> Finding:
    return Finding(
        _DIRECTORY,
        f"cannot write a file of {PROBE_BYTES} bytes to the run's checkpoints directory: "
        f"{error.strerror or error}.",
        "Check the permissions and the free space of the worker's data directory.",
        category=ErrorCategory.INFRASTRUCTURE,
    )


def _report(outcomes: list[Outcome], events: EventLog) -> None:
    findings = (finding for outcome in outcomes for finding in outcome.findings)
    report_findings(findings, events, None)


def _write_summary(outcomes: list[Outcome], events: EventLog, seconds: float) -> None:
    by_state = {
        state: [outcome for outcome in outcomes if outcome.state == state]
        for state in ("passed", "not_applicable", "skipped")
    }
    text = f"self-check: {len(by_state['passed'])} checks passed in {seconds:.1f} s"
    shown = ("patched_equals_stock", "rollout_equals_stock")
    details = [outcome.detail for outcome in by_state["passed"] if outcome.check in shown]
    if details:
        text += f" ({'; '.join(details)})"
    for state, words in (("not_applicable", "do not apply"), ("skipped", "were skipped")):
        if by_state[state]:
            which = "; ".join(f"{outcome.check}: {outcome.detail}" for outcome in by_state[state])
            text += f"; {len(by_state[state])} {words} ({which})"
    data: dict[str, JsonValue] = {
        "seconds": round(seconds, 3),
        "checks": {
            outcome.check: {"state": outcome.state, "detail": outcome.detail}
            for outcome in outcomes
        },
    }
    events.message(text, data=data)

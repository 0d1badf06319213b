"""The self-check, top to bottom: what is cheap to see first, then passes of a piece of real data
through the model. What it looks at is afterwards what it was, bit for bit.

Which checks a run needs goes by what it learns from: `supervised_checks` here, those of
reinforcement in rollouts/.
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

from .check_context import Subject, Tuned
from .findings import Finding, Outcome, judged, passed, settle
from .labels import check_answers, check_end_token, check_labels
from .numerics import check_numerics
from .parameters import check_embeddings, check_optimizer, check_trained_parameters, check_weights

AnySubject = TypeVar("AnySubject", bound=Tuned)


@dataclass(frozen=True, kw_only=True)
class Checks(Generic[AnySubject]):
    cheap: Sequence[Callable[[AnySubject], Outcome]]
    """What can be seen without running the model: all are judged, then the run ends if one
    failed."""
    numeric: Callable[[AnySubject], list[Outcome]]
    """Those that run it."""


def supervised_checks() -> Checks[Subject]:
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


def self_check(subject: AnySubject, events: EventLog, checks: Checks[AnySubject]) -> None:
    """Raises RunError when the run would not learn what it should."""
    if not subject.recipe.self_check:
        return
    began = time.perf_counter()
    with events.phase(PhaseName.SELF_CHECK):
        outcomes = [check(subject) for check in checks.cheap]
        _settle(outcomes, events)
        numeric = checks.numeric(subject)
        _settle(numeric, events)
        outcomes += numeric
    _tell(outcomes, events, time.perf_counter() - began)


def check_longest_batch(subject: Subject) -> Outcome:
    """`longest_batch`: has run already, forward and backward, in the memory plan's trial pass."""
    batch = subject.memory.planner.batch.part(subject.memory.steps.policy.parts)
    return passed("longest_batch", f"{batch.tokens:,} tokens ran in the memory plan's trial pass")


def _settle(outcomes: list[Outcome], events: EventLog) -> None:
    settle((finding for one in outcomes for finding in one.findings), events, None)


def _tell(outcomes: list[Outcome], events: EventLog, seconds: float) -> None:
    by_state = {
        state: [one for one in outcomes if one.state == state]
        for state in ("passed", "not_applicable", "skipped")
    }
    text = f"self-check: {len(by_state['passed'])} checks passed in {seconds:.1f} s"
    shown = ("patched_equals_stock", "rollout_equals_stock")
    equal = [one.detail for one in by_state["passed"] if one.check in shown]
    if equal:
        text += f" ({'; '.join(equal)})"
    for state, words in (("not_applicable", "do not apply"), ("skipped", "were skipped")):
        if by_state[state]:
            which = "; ".join(f"{one.check}: {one.detail}" for one in by_state[state])
            text += f"; {len(by_state[state])} {words} ({which})"
    data: dict[str, JsonValue] = {
        "seconds": round(seconds, 3),
        "checks": {one.check: {"state": one.state, "detail": one.detail} for one in outcomes},
    }
    events.message(text, data=data)


PROBE_BYTES = 4096
RESUME_POINTS = 2
"""Full states that may lie there at once: the last, and the one that is being written."""
MARGIN = 1.1
"""Of the predicted bytes: file systems take their share."""
_DIRECTORY = "checkpoint_directory"


def check_directory(subject: Tuned) -> Outcome:
    """`checkpoint_directory`: a file is written there, flushed to the disk and removed."""
    folder = subject.folder / "checkpoints"
    probe = folder / ".self-check.part"
    try:
        folder.mkdir(exist_ok=True)
        with probe.open("wb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
        probe.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):  # it may not even have been made
            probe.unlink()
        return judged(_DIRECTORY, [_not_writable(error)], "")
    needed, free = int(MARGIN * predicted_bytes(subject)), shutil.disk_usage(folder).free
    findings = []
    if free < needed:
        findings.append(
            Finding(
                _DIRECTORY,
                f"{format_bytes(free)} are free, and the result with {RESUME_POINTS} resume points "
                f"takes {format_bytes(needed)} ({MARGIN - 1:.0%} to spare included).",
                "Free space in the worker's data directory, then start the job again.",
                category=ErrorCategory.INFRASTRUCTURE,
            )
        )
    return judged(_DIRECTORY, findings, f"{format_bytes(needed)} needed, {format_bytes(free)} free")


def predicted_bytes(subject: Tuned) -> int:
    """Of what is saved at the end, and of the states that the run could go on from: the weights
    that train, and what the optimiser keeps for them."""
    model = subject.model
    weights: int = sum(p.numel() * p.itemsize for p in model.parameters() if p.requires_grad)
    state = weights + subject.optimizer_bytes
    if subject.full:
        return weights + RESUME_POINTS * state
    return predict_bytes(model, adapter_dtype(subject.recipe)) + RESUME_POINTS * state


def _not_writable(error: OSError) -> Finding:
    return Finding(
        _DIRECTORY,
        f"a file of {PROBE_BYTES} bytes cannot be written to the run's checkpoints: "
        f"{error.strerror or error}.",
        "Check the rights and the space of the worker's data directory.",
        category=ErrorCategory.INFRASTRUCTURE,
    )

"""The self-check, top to bottom: what is cheap to see first, then passes of a piece of real data
through the model. What it looks at is afterwards what it was, bit for bit.

Which checks a run needs goes by what it learns from: `supervised_checks` here, those of
reinforcement in rollouts/.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import JsonValue

from tunesmith_schema import PhaseName
from tunesmith_worker.rundir.events import EventLog

from .directory import check_directory
from .findings import settle
from .labels import check_answers, check_end_token, check_labels
from .numerics import check_numerics
from .subject import Outcome, Subject, Tuned, passed
from .trained import check_optimizer, check_trained_parameters
from .weights import check_embeddings, check_weights

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

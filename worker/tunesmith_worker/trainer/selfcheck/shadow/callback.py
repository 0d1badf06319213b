"""Callback that checks the run's first optimizer step against plain torch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import transformers

from tunesmith_schema import PhaseName
from tunesmith_worker.engine.memory.retry import release_cached_memory
from tunesmith_worker.engine.model.embeddings import embedding_parameters
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.rundir.errors import is_out_of_memory
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.selfcheck.check_context import CheckContext
from tunesmith_worker.trainer.selfcheck.findings import Finding, report_findings

from .compare import check_clipping, gradients_of
from .schedule import learning_rate_at
from .update import FirstUpdate, Rates, decaying

Untyped = Any  # Any: transformers and TRL are not typed


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Result of the comparison of loss and gradient."""

    detail: str
    """Text about the comparison: its extent and the differences, or the reason for none."""
    findings: tuple[Finding, ...] = ()


class StepCheck(Protocol):
    """Comparison of the first step's loss and gradient, for one training method."""

    def start(self) -> None:
        """Prepare before the first step."""

    def compare(self) -> StepReport:
        """Compare after backward and clipping, before the optimizer step. Changes no tensor."""

    def examples(self) -> list[tuple[int, ...]]:
        """Return a key of each example of the current step; empty if the step repeats data as
        planned."""

    def look(self) -> list[Finding]:
        """Return findings of a later step, between backward and optimizer step."""


def unless_memory_runs_out(compare: Callable[[], StepReport]) -> StepReport:
    """Return the comparison of loss and gradient, or a report that says that memory ran out."""
    try:
        return compare()
    except Exception as error:  # out-of-memory errors have several types
        if not is_out_of_memory(error):
            raise
    release_cached_memory()
    return StepReport(detail="loss and gradient were not compared: memory ran out")


class FirstStepShadow(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Checks the first step of a run that starts at step 0.

    All findings are reported after the step, so that the tripwires, whose messages are more
    specific, come first."""

    def __init__(
        self,
        context: CheckContext,
        check: StepCheck,
        events: EventLog,
        clock: WallClock,
        *,
        exclude_time: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`exclude_time`: receives the seconds of the check, which do not count for rates."""
        self._context, self._check, self._events, self._clock = context, check, events, clock
        self._exclude_time = exclude_time
        self._due = False
        self._seconds = 0.0
        self._report: StepReport | None = None
        self._update: FirstUpdate | None = None
        self._findings: list[Finding] = []

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._due = state.global_step == 0
        if self._due:
            self._check.start()

    def on_pre_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        if not self._due:
            return
        began = time.perf_counter()
        trainer = self._context.trainer
        with self._clock.during(PhaseName.SELF_CHECK):
            self._report = self._check.compare()
            gradients = gradients_of(trainer.model)
            max_norm = self._context.train_plan.max_grad_norm
            clipping = check_clipping(float(trainer.guard.norm), gradients, max_norm)
            if clipping:  # explains every other difference
                self._report = StepReport(detail="", findings=tuple(clipping))
            optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
            self._update = FirstUpdate(self._context.model, optimizer)
        self._add_time(began)

    def on_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        if not self._due or self._report is None or self._update is None:
            return
        began = time.perf_counter()
        with self._clock.during(PhaseName.SELF_CHECK):
            self._findings = [
                *self._report.findings,
                *self._update.check(wanted_rates(self._context, 0)),
            ]
        self._add_time(began)

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if not self._due or self._report is None or self._update is None:
            return
        self._due = False
        self._context.trainer.guard.check()  # a NaN has its own message
        report_findings(self._findings, self._events, state.global_step)
        update = self._update
        weights = "all" if update.compared == update.total else f"{update.compared:,} of"
        detail = (
            f"{self._report.detail}; the update of {weights} {update.total:,} weights is that of "
            "AdamW in plain torch"
        )
        self._events.message(
            f"first step: {detail} ({self._seconds:.1f} s)",
            data={"first_step": detail, "seconds": round(self._seconds, 3)},
        )
        self._report = self._update = None

    def _add_time(self, began: float) -> None:
        seconds = time.perf_counter() - began
        self._seconds += seconds
        self._exclude_time(seconds)


def wanted_rates(context: CheckContext, update: int) -> Callable[[str, Untyped], Rates]:
    """Return a function that gives the rates that the recipe requires of a parameter.

    `update`: number of earlier updates of the run."""
    plan, peak = context.train_plan, context.trainer.embedding_rate
    now = learning_rate_at(update, plan)
    embedding = {id(p) for p in embedding_parameters(context.model)} if peak else set()
    decayed = decaying(context.model)

    def rates(name: str, parameter: Untyped) -> Rates:
        rate = now
        if id(parameter) in embedding:
            rate = now * peak / plan.learning_rate if plan.learning_rate else now
        return Rates(rate=rate, decay=plan.weight_decay if name in decayed else 0.0)

    return rates

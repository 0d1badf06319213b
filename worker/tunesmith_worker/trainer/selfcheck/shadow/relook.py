"""Callback that looks again at steps 2, 10, 50 and every 50 steps: learning rate, clipping, update,
order of the data, and for reinforcement runs rewards, advantages and reference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

from tunesmith_schema import PhaseName
from tunesmith_worker.rundir.clock import WallClock
from tunesmith_worker.rundir.events import EventLog
from tunesmith_worker.trainer.selfcheck.check_context import CheckContext
from tunesmith_worker.trainer.selfcheck.findings import Finding, report_findings

from .callback import StepCheck, wanted_rates
from .compare import check_clipping, gradients_of
from .data_order import DataOrder
from .later_update import LaterUpdate

Untyped = Any  # Any: transformers and TRL are not typed

FIRST_LOOKS = (2, 10)
EVERY = 50
"""Number of steps between later looks."""


def is_look(step: int) -> bool:
    """Return True if the run looks at this step, counted from 1."""
    return step in FIRST_LOOKS or step % EVERY == 0


class RunningLook(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Looks again while the run trains. A resumed run begins a new count of the data."""

    def __init__(
        self,
        context: CheckContext,
        check: StepCheck,
        events: EventLog,
        clock: WallClock,
        *,
        exclude_time: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Arguments as in `FirstStepShadow`."""
        self._context, self._check, self._events, self._clock = context, check, events, clock
        self._exclude_time = exclude_time
        self._order = DataOrder()
        self._update: LaterUpdate | None = None
        self._findings: list[Finding] = []

    def on_pre_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        self._order.add(self._check.examples(), int(state.epoch or 0))
        if not is_look(state.global_step + 1):
            return
        with self._looking():
            self._findings = [*self._look_before(state)]
            self._update = LaterUpdate(self._context.model, self._optimizer)

    def on_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        if self._update is not None:
            with self._looking():
                rates = wanted_rates(self._context, state.global_step)
                self._findings += self._update.check(rates)
            self._update = None

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if is_look(state.global_step):
            self._context.trainer.guard.check()  # a NaN has its own message
            findings, self._findings = self._findings, []
            report_findings(findings, self._events, state.global_step)

    def _look_before(self, state: Untyped) -> Iterator[Finding]:
        context = self._context
        trainer, model = context.trainer, context.model
        norm = float(trainer.guard.norm)
        if norm > 0 and torch.isfinite(trainer.guard.norm):
            yield from check_clipping(norm, gradients_of(model), context.train_plan.max_grad_norm)
        yield from self._order.check(trainer.train_dataset)
        yield from self._check.look()

    @property
    def _optimizer(self) -> torch.optim.Optimizer:
        optimizer = self._context.trainer.optimizer
        inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
        return inner

    def _looking(self) -> _Timed:
        return _Timed(self._clock, self._exclude_time)


class _Timed:
    """Block whose time counts as self-check."""

    def __init__(self, clock: WallClock, exclude_time: Callable[[float], None]) -> None:
        self._phase, self._exclude_time = clock.during(PhaseName.SELF_CHECK), exclude_time

    def __enter__(self) -> None:
        self._began = time.perf_counter()
        self._phase.__enter__()

    def __exit__(self, *error: Untyped) -> None:
        self._phase.__exit__(*error)
        self._exclude_time(time.perf_counter() - self._began)

"""Callback that repeats the checks of the first step at steps 2 and 10, and every 50 steps.

The repeated checks cover the learning rate, clipping, the update and the order of the data; in
reinforcement runs, also rewards, advantages and the reference model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tunesmith_worker.trainer.selfcheck.findings import Finding, report_findings

from .compare import check_clipping, gradients_of
from .data_order import DataOrder
from .later_update import LaterUpdate
from .watch import StepWatch

Untyped = Any  # Any: transformers and TRL are not typed

FIRST_LOOKS = (2, 10)
EVERY = 50
"""Number of steps between two checks after the last step of FIRST_LOOKS."""


def is_look(step: int) -> bool:
    """Return True if this step, counted from 1, is checked."""
    return step in FIRST_LOOKS or step % EVERY == 0


class RunningLook(StepWatch):
    """Repeats the checks of the first step while the run trains.

    In a resumed run, the count of trained examples starts again at 0.
    """

    _order: DataOrder
    _update: LaterUpdate | None = None
    _findings: tuple[Finding, ...] = ()

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._order = DataOrder()

    def on_pre_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        self._order.add(self.check.examples(), int(state.epoch or 0))
        if not is_look(state.global_step + 1):
            return
        with self.checking():
            self._findings = tuple(self._look_before())
            self._update = LaterUpdate(self.context.model, self.optimizer)

    def on_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        if self._update is not None:
            with self.checking():
                wanted = self.wanted_rates(state.global_step)
                self._findings = (*self._findings, *self._update.check(wanted))
            self._update = None

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if is_look(state.global_step):
            self.context.trainer.guard.check()  # a NaN has its own message
            findings, self._findings = self._findings, ()
            report_findings(findings, self.events, state.global_step)

    def _look_before(self) -> Iterator[Finding]:
        context = self.context
        trainer, model = context.trainer, context.model
        norm = float(trainer.guard.norm)
        if norm > 0 and torch.isfinite(trainer.guard.norm):
            yield from check_clipping(norm, gradients_of(model), context.train_plan.max_grad_norm)
        yield from self._order.check(trainer.train_dataset)
        yield from self.check.look()

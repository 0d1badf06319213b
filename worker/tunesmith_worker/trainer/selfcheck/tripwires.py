"""At steps 1, 10 and 50: the loss is a number and not zero, gradient reaches what must learn, and
weights move. Between them nothing is read from the device.

What an earlier look has seen travels in resume points; steps are the run's, so that a run that is
resumed is not looked at twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_schema import ErrorCategory
from tunesmith_worker.rundir.events import EventLog

from . import gradients
from .findings import Finding, settle
from .movement import Movement
from .trained_units import trained_units

Untyped = Any  # Any: transformers and TRL are not typed

STEPS = (1, 10, 50)


class Tripwires(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    def __init__(self, trainer: Untyped, events: EventLog) -> None:
        """`trainer`: one of ours."""
        self._trainer, self._events = trainer, events
        self.had_gradient: list[str] = []
        """Units that had a gradient at a look before."""
        self._movement: Movement | None = None
        self._largest: dict[str, torch.Tensor | None] = {}
        self._rows: dict[str, tuple[list[int], torch.Tensor]] = {}
        self._labelled = 0

    def state(self) -> dict[str, Untyped]:
        return {"args": {}, "attributes": {"had_gradient": self.had_gradient}}

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._units = trained_units(self._trainer.model)
        if state.global_step < STEPS[-1]:  # before a backward that would find nothing to do
            settle(gradients.frozen(self._units), self._events, state.global_step or None)

    def on_pre_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        step = state.global_step + 1
        if step > STEPS[-1]:
            return
        if self._movement is None:
            optimizer = self._trainer.optimizer
            self._movement = Movement(self._units, getattr(optimizer, "optimizer", optimizer))
        self._movement.steps_with()
        if step in STEPS:
            rows = self._trainer.guard.taking.rows
            self._labelled = self._trainer.labelled_tokens(rows)
            self._largest = gradients.largest(self._units)
            predicting = self._trainer.predicting_tokens(rows)
            self._rows = gradients.silent_rows(self._trainer.model, predicting)

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        step = state.global_step
        if step in STEPS and self._movement is not None:
            self._trainer.guard.check()  # a NaN is told by the row that made it
            if not self._labelled and self._trainer.may_teach_nothing:
                return  # chance: every completion of a group was as good as the others
            settle(self._findings(step, self._movement), self._events, step)
        if step >= STEPS[-1]:
            self._movement = None  # and the rows that it keeps

    def _findings(self, step: int, movement: Movement) -> list[Finding]:
        found: list[Finding] = []
        if not self._trainer.may_teach_nothing:
            found += _judged_loss(float(self._trainer.step_loss), self._labelled, step)
        if any(one.level == "error" for one in found):
            return found  # no gradient, no movement: because of it
        found += gradients.frozen(self._units)
        had = set(self.had_gradient)
        now = gradients.read(self._largest)
        found += gradients.judged(self._units, now, had, first=step == STEPS[0])
        self.had_gradient = sorted(had)
        for name, (ids, sizes) in self._rows.items():
            found += gradients.judged_rows(name, ids, sizes.tolist())
        found += self._judged_rates(step, movement)
        found += movement.judged(fresh=step == STEPS[0])
        return found

    def _judged_rates(self, step: int, movement: Movement) -> Iterator[Finding]:
        """A warm-up may begin at 0, and does not stay there."""
        groups = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer).param_groups
        still = [i for i in movement.resting if not groups[i]["lr"] or step > STEPS[0]]
        if still:
            count = sum(len(groups[index]["params"]) for index in still)
            yield Finding(
                "learning_rate",
                f"the learning rate of {count} tensors was 0 at every step so far and still is.",
                "Raise recipe.learning_rate, or lower recipe.warmup_steps below the run's steps.",
                param="recipe.learning_rate",
            )


def _judged_loss(loss: float, labelled: int, step: int) -> Iterator[Finding]:
    if not math.isfinite(loss):
        yield Finding(
            "loss",
            f"the loss is {loss} though its gradient is finite.",
            "Use recipe.precision='fp32', or lower recipe.learning_rate.",
            param="recipe.precision",
        )
    elif loss == 0.0 and labelled == 0:
        yield Finding(
            "loss",
            "the loss is exactly 0, because no token of the step's rows carries a label.",
            "Nothing in a recipe does that: report it with the job's events.",
            category=ErrorCategory.INFRASTRUCTURE,
        )
    elif loss == 0.0:
        yield Finding(
            "loss",
            f"the loss of {labelled} labelled tokens is exactly 0.",
            "Either it is not computed, or the model knows its rows by heart.",
            # At first nothing can have been learned by heart.
            level="error" if step < STEPS[-1] else "warn",
        )

"""At steps 1, 10 and 50: the loss is a number and not zero, gradient reaches what must learn, and
weights move. Between them nothing is read from the device.

What an earlier look has seen travels in resume points; steps are the run's, so that a run that is
resumed is not looked at twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from pydantic import JsonValue
from transformers.trainer_callback import ExportableState

from tunesmith_schema import ErrorCategory, Precision
from tunesmith_worker.rundir.events import EventLog

from . import gradients
from .findings import Finding, settle
from .gradients import trained_units
from .movement import Movement

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
            rows = self._trainer.guard.current_step.rows
            self._labelled = self._trainer.labelled_tokens(rows)
            self._largest = gradients.largest(self._units)
            predicting = self._trainer.predicting_tokens(rows)
            self._rows = gradients.silent_rows(self._trainer.model, predicting)

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        step = state.global_step
        if step in STEPS and self._movement is not None:
            self._trainer.guard.check()  # a NaN is told by the row that made it
            if not self._labelled and self._trainer.zero_gradient_is_valid:
                return  # chance: every completion of a group was as good as the others
            settle(self._findings(step, self._movement), self._events, step)
        if step >= STEPS[-1]:
            self._movement = None  # and the rows that it keeps

    def _findings(self, step: int, movement: Movement) -> list[Finding]:
        found: list[Finding] = []
        if not self._trainer.zero_gradient_is_valid:
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


GAP = {"fp32": 0.01}
GAP_16_BITS = 0.1
"""Mean |log-prob when drawn - in training|, nats a token. Rounding to fp32 gives 1e-6, to 16 bits
1e-3 to 2e-2."""
EQUAL_REWARDS = 0.8
TRUNCATED = 0.3
CLIPPED = 0.3
KL = 1.0
"""Nats a token."""
ENTROPY = 0.1
"""Of what it was in the first steps."""
FIRST, FEW, MANY = 5, 3, 10
"""Steps that entropy is measured over at first, and steps in a row that an alarm waits for."""


_EQUAL_REWARDS = (
    "nothing is learned from them. The grader gives every completion the same, or the task is too "
    "hard or too easy: look at the job's samples."
)


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Of one optimiser step; None: not measured. Names as in the job's metrics."""

    step: int
    rollout_gap: float | None = None
    frac_reward_zero_std: float | None = None
    truncated_share: float | None = None
    entropy: float | None = None
    kl: float | None = None
    clip_ratio: float | None = None


class RolloutTripwires:
    def __init__(self, precision: Precision) -> None:
        self._gap = GAP.get(precision, GAP_16_BITS)
        self._told: set[str] = set()
        self._in_a_row: dict[str, int] = {}
        self._first: list[float] = []
        """Entropies of the first steps."""

    def step(self, figures: StepFigures) -> list[str]:
        """Sentences to warn with; usually none. Each kind comes once in a run."""
        found = []
        for name, steps, is_bad, text in self._looked_at(figures):
            row = self._in_a_row.get(name, 0) + 1 if is_bad else 0
            self._in_a_row[name] = row
            if row >= steps and name not in self._told:
                self._told.add(name)
                found.append(f"Step {figures.step}: {name}: {text}")
        if figures.entropy is not None and len(self._first) < FIRST:
            self._first.append(figures.entropy)
        return found

    def end(self, spreads: int) -> list[str]:
        """After a run; `spreads`: its groups whose rewards differ. What `step` has not told."""
        if spreads or "equal_rewards" in self._told:
            return []
        return [f"equal_rewards: in no group of the run did rewards differ: {_EQUAL_REWARDS}"]

    def state(self) -> dict[str, JsonValue]:
        """For a resume point."""
        told: list[JsonValue] = [*sorted(self._told)]
        first: list[JsonValue] = [*self._first]
        return {"told": told, "in_a_row": {**self._in_a_row}, "first": first}

    def restore(self, state: Mapping[str, JsonValue]) -> None:
        """What `state` gave."""
        told, rows, first = state["told"], state["in_a_row"], state["first"]
        assert isinstance(told, list)
        assert isinstance(rows, dict)
        assert isinstance(first, list)
        self._told = {str(one) for one in told}
        self._in_a_row = {name: int(str(row)) for name, row in rows.items()}
        self._first = [float(str(one)) for one in first]

    def _looked_at(self, now: StepFigures) -> Iterator[tuple[str, int, bool, str]]:
        """Name, steps in a row, whether this step is one of them, and what to say."""
        gap = now.rollout_gap
        if gap is not None:
            text = (
                f"tokens' log-probabilities when drawn and in training are {gap:.2g} apart on "
                f"average (healthy: up to {self._gap:g}): rollouts are not drawn from the weights "
                "that train. recipe.patches='off' tells whose fault it is; report it."
            )
            yield "rollout_gap", 1, not gap <= self._gap, text
        equal = now.frac_reward_zero_std
        if equal is not None:
            text = f"in every group all rewards were equal for {MANY} steps: {_EQUAL_REWARDS}"
            yield "equal_rewards", MANY, equal >= 1.0, text
            text = (
                f"rewards were equal within {equal:.0%} of the groups, more than "
                f"{EQUAL_REWARDS:.0%} for {MANY} steps: few groups teach anything. Raise "
                "recipe.grpo.num_generations, or take prompts of another difficulty."
            )
            yield "few_spreads", MANY, EQUAL_REWARDS <= equal < 1.0, text
        cut = now.truncated_share
        if cut is not None:
            text = (
                f"every completion reached its limit for {FEW} steps: raise "
                "recipe.grpo.max_completion_length, or use a model that ends its answers."
            )
            yield "all_truncated", FEW, cut >= 1.0, text
            text = (
                f"{cut:.0%} of completions reached their limit, more than {TRUNCATED:.0%} for "
                f"{MANY} steps: raise recipe.grpo.max_completion_length."
            )
            yield "truncated", MANY, TRUNCATED < cut < 1.0, text
        yield from self._of_the_policy(now)

    def _of_the_policy(self, now: StepFigures) -> Iterator[tuple[str, int, bool, str]]:
        entropy = now.entropy
        if entropy is not None and len(self._first) == FIRST:
            start = sum(self._first) / FIRST
            text = (
                f"entropy fell to {entropy:.2g} nats a token, from {start:.2g} in the first "
                f"{FIRST} steps: the completions of a group become equal. Lower "
                "recipe.learning_rate, or raise recipe.grpo.epsilon_high or temperature."
            )
            yield "entropy", FIRST, entropy < ENTROPY * start, text
        if now.kl is not None:
            text = (
                f"the model is {now.kl:.2g} nats a token away from where it started, more than "
                f"{KL:g} for {FIRST} steps: lower recipe.learning_rate, or raise recipe.grpo.beta."
            )
            yield "kl", FIRST, not now.kl <= KL, text
        if now.clip_ratio is not None:
            text = (
                f"{now.clip_ratio:.0%} of tokens were clipped, more than {CLIPPED:.0%} for {MANY} "
                "steps: their gradient is lost. Lower recipe.learning_rate or "
                "recipe.grpo.num_iterations."
            )
            yield "clip_ratio", MANY, not now.clip_ratio <= CLIPPED, text

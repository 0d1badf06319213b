"""Checks during training.

`Tripwires` checks at steps 1, 10 and 50 that the loss is finite and not zero, that each group of
trained parameters (`gradients.Unit`) gets a gradient, and that weights change. At steps without a
check, `Tripwires` reads nothing from the device. `RolloutTripwires` warns about the metrics of a
reinforcement run.
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
from tunesmith_schema.rollout_limits import largest_gap
from tunesmith_worker.rundir.events import EventLog

from . import gradients
from .findings import REPORT_HINT, Finding, report_findings
from .movement import Movement

Untyped = Any  # Any: transformers and TRL are not typed

STEPS = (1, 10, 50)
FIRST_FACTORS = (3, 11)
"""Steps at which rows of LoRA's A are copied. At step 3, LoRA's B is not 0, even in a warm-up that
starts at a learning rate of 0."""
GAP_FAULT = 10
"""The run ends if the gap between sampling and training log-probs is more than GAP_FAULT times the
limit for a warning.

A wrong sampling temperature, stale weights or a detached adapter cause such large gaps, but
rounding does not.
"""
EQUAL_REWARDS = 0.8
TRUNCATED = 0.3
CLIPPED = 0.3
KL = 1.0
"""Maximum KL divergence from the reference model, in nats per token."""
ENTROPY = 0.1
"""Minimum entropy, as a share of the mean entropy in the first steps."""
FIRST, FEW, MANY = 5, 3, 10
"""Numbers of consecutive bad steps before a warning, for different kinds of warnings. The mean
entropy of the first FIRST steps counts as the run's initial entropy."""

_RENAMED = {"few_spreads": "mostly_equal_rewards"}
"""Current names of warnings; the keys are their names in resume points of earlier versions."""
_EQUAL_REWARDS = (
    "the model learns nothing from such groups. The grader gives every completion the same score, "
    "or the task is too hard or too easy: look at the job's samples."
)


class Tripwires(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    """Callback that checks loss, gradients and weight changes in every run.

    Resume points contain the state of this callback, so a resumed run does not repeat earlier
    checks.
    """

    def __init__(self, trainer: Untyped, events: EventLog) -> None:
        """`trainer`: an SFTTrainer or GRPOTrainer of this project."""
        self._trainer, self._events = trainer, events
        self.had_gradient: list[str] = []
        """Names of the units (`gradients.Unit`) that had a gradient at an earlier check."""
        self._movement: Movement | None = None
        self._largest: dict[str, torch.Tensor | None] = {}
        self._rows: dict[str, tuple[list[int], torch.Tensor]] = {}
        self._labelled = 0

    def state(self) -> dict[str, Untyped]:
        return {"args": {}, "attributes": {"had_gradient": self.had_gradient}}

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        self._units = gradients.trained_units(self._trainer.model)
        if state.global_step < STEPS[-1]:  # report this before backward fails
            frozen = gradients.check_frozen(self._units)
            report_findings(frozen, self._events, state.global_step or None)

    def on_pre_optimizer_step(
        self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped
    ) -> None:
        step = state.global_step + 1
        if step > STEPS[-1]:
            return
        if self._movement is None:
            optimizer = self._trainer.optimizer
            self._movement = Movement(self._units, getattr(optimizer, "optimizer", optimizer))
        self._movement.record_rates()
        if step in FIRST_FACTORS:
            self._movement.keep_first_factors(self._units)
        if step in STEPS:
            rows = self._trainer.guard.current_step.rows
            self._labelled = self._trainer.labelled_tokens(rows)
            self._largest = gradients.largest_elements(self._units)
            predicting = self._trainer.predicting_tokens(rows)
            self._rows = gradients.used_row_gradients(self._trainer.model, predicting)

    def on_step_end(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        step = state.global_step
        if step in STEPS and self._movement is not None:
            self._trainer.guard.check()  # the guard names the row that caused a NaN
            if not self._labelled and self._trainer.zero_gradient_is_valid:
                return  # no gradient: by chance, each group's rewards were equal
            report_findings(self._findings(step, self._movement), self._events, step)
        if step >= STEPS[-1]:
            self._movement = None  # frees the copied rows

    def _findings(self, step: int, movement: Movement) -> list[Finding]:
        findings: list[Finding] = []
        if not self._trainer.zero_gradient_is_valid:
            findings += _check_loss(float(self._trainer.step_loss), self._labelled, step)
        if any(finding.level == "error" for finding in findings):
            return findings  # the wrong loss is the cause of missing gradients and updates
        findings += gradients.check_frozen(self._units)
        had = set(self.had_gradient)
        largest = gradients.copy_to_host(self._largest)
        findings += gradients.check_units(self._units, largest, had, first=step == STEPS[0])
        self.had_gradient = sorted(had)
        for name, (ids, sizes) in self._rows.items():
            findings += gradients.check_rows(name, ids, sizes.tolist())
        findings += self._check_rates(step, movement)
        findings += movement.check(fresh=step == STEPS[0])
        return findings

    def _check_rates(self, step: int, movement: Movement) -> Iterator[Finding]:
        """Yield a finding if the learning rate of parameter groups stays 0. At the first check, the
        learning rate may be 0, because a warm-up may start at 0."""
        groups = getattr(self._trainer.optimizer, "optimizer", self._trainer.optimizer).param_groups
        still = [i for i in movement.groups_at_rate_zero if not groups[i]["lr"] or step > STEPS[0]]
        if still:
            count = sum(len(groups[index]["params"]) for index in still)
            yield Finding(
                "learning_rate",
                f"the learning rate of {count} tensors has been 0 at every step so far.",
                "Raise recipe.learning_rate, or set recipe.warmup_steps below the number of steps.",
                param="recipe.learning_rate",
            )


def _check_loss(loss: float, labelled: int, step: int) -> Iterator[Finding]:
    if not math.isfinite(loss):
        yield Finding(
            "loss",
            f"the loss is {loss} although its gradient is finite.",
            "Use recipe.precision='fp32', or lower recipe.learning_rate.",
            param="recipe.precision",
        )
    elif loss == 0.0 and labelled == 0:
        yield Finding(
            "loss",
            "the loss is exactly 0, because no token of the step's rows has a label.",
            REPORT_HINT,
            category=ErrorCategory.INFRASTRUCTURE,
        )
    elif loss == 0.0:
        yield Finding(
            "loss",
            f"the loss of {labelled} labelled tokens is exactly 0.",
            "Either the loss is not computed, or the model has memorized its rows.",
            # In the first steps, the model cannot have memorized the rows.
            level="error" if step < STEPS[-1] else "warn",
        )


@dataclass(frozen=True, kw_only=True)
class RolloutFigures:
    """Metrics of one optimizer step, named as in the job's metrics; None if not measured."""

    step: int
    rollout_gap: float | None = None
    frac_reward_zero_std: float | None = None
    truncated_share: float | None = None
    entropy: float | None = None
    kl: float | None = None
    clip_ratio: float | None = None


class RolloutTripwires:
    """Warnings about a reinforcement run's metrics, each kind once per run.

    The limits for the log-prob gap, equal rewards and truncation are common practice
    (docs/explanation/self-check.md). The limits for entropy, KL and clipping are rules of thumb.
    """

    def __init__(self, precision: Precision) -> None:
        self._gap = largest_gap(precision)
        self._warned: set[str] = set()
        self._consecutive: dict[str, int] = {}
        """Number of consecutive bad steps, for each kind of warning."""
        self._first: list[float] = []
        """Entropies of the first steps."""
        self._truncated: float | None = None
        """Share of truncated completions in the last step."""

    def step(self, figures: RolloutFigures) -> list[str]:
        """Return the new warnings of a step."""
        warnings = []
        self._truncated = figures.truncated_share
        for name, steps, is_bad, text in self._kinds(figures):
            count = self._consecutive.get(name, 0) + 1 if is_bad else 0
            self._consecutive[name] = count
            if count >= steps and name not in self._warned:
                self._warned.add(name)
                warnings.append(f"Step {figures.step}: {name}: {text}")
        if figures.entropy is not None and len(self._first) < FIRST:
            self._first.append(figures.entropy)
        return warnings

    def check_gap(self, figures: RolloutFigures) -> list[Finding]:
        """Return an error if the gap between sampling and training log-probs of a step is too large
        to train."""
        gap, limit = figures.rollout_gap, GAP_FAULT * self._gap
        if gap is None or not gap > limit:  # NaN is only a warning
            return []
        return [
            Finding(
                "rollout_gap",
                "the mean difference between generation and training log-probabilities is "
                f"{gap:.2g} nats per token (tolerance {limit:g}; healthy: up to {self._gap:g}): "
                "the rollouts come from another policy than the trained one.",
                REPORT_HINT,
                category=ErrorCategory.INFRASTRUCTURE,
            )
        ]

    def end(self, spreads: int) -> list[str]:
        """Return warnings at the end of the run. `spreads`: number of groups whose
        completions had different rewards."""
        if spreads or "equal_rewards" in self._warned:
            return []
        return [
            f"equal_rewards: in every group of the run, all rewards were equal: {_EQUAL_REWARDS}"
            f"{self._cut_answers()}"
        ]

    def _cut_answers(self) -> str:
        """Return a warning text if many completions reach the length limit."""
        cut = self._truncated
        if cut is None or cut <= TRUNCATED:
            return ""
        return (
            f" In the last step, {cut:.0%} of the completions reached the length limit, which cuts "
            "their answers off: raise recipe.grpo.max_completion_length."
        )

    def state(self) -> dict[str, JsonValue]:
        """Return the state for a resume point."""
        warned: list[JsonValue] = [*sorted(self._warned)]
        first: list[JsonValue] = [*self._first]
        return {"told": warned, "in_a_row": {**self._consecutive}, "first": first}

    def restore(self, state: Mapping[str, JsonValue]) -> None:
        """Restore the state that `state` returned."""
        warned, counts, first = state["told"], state["in_a_row"], state["first"]
        assert isinstance(warned, list)
        assert isinstance(counts, dict)
        assert isinstance(first, list)
        self._warned = {_RENAMED.get(str(name), str(name)) for name in warned}
        self._consecutive = {
            _RENAMED.get(name, name): int(str(count)) for name, count in counts.items()
        }
        self._first = [float(str(entropy)) for entropy in first]

    def _kinds(self, now: RolloutFigures) -> Iterator[tuple[str, int, bool, str]]:
        """Yield four values for each kind of warning: its name, the number of bad steps before the
        warning, True if this step is bad, and the text."""
        gap = now.rollout_gap
        if gap is not None:
            text = (
                f"the mean difference between generation and training log-probabilities "
                f"is {gap:.2g} (healthy: up to {self._gap:g}): rollouts do not use the current "
                "weights. Try recipe.patches='off', and report the fault."
            )
            yield "rollout_gap", 1, not gap <= self._gap, text
        equal = now.frac_reward_zero_std
        if equal is not None:
            text = (
                f"for {MANY} steps, all rewards within each group were equal: {_EQUAL_REWARDS}"
                f"{self._cut_answers()}"
            )
            yield "equal_rewards", MANY, equal >= 1.0, text
            text = (
                f"for {MANY} steps, at least {EQUAL_REWARDS:.0%} of the groups had equal rewards "
                f"(last step: {equal:.0%}): the model learns from few groups. Raise "
                "recipe.grpo.num_generations, or use prompts of another difficulty."
            )
            yield "mostly_equal_rewards", MANY, EQUAL_REWARDS <= equal < 1.0, text
        cut = now.truncated_share
        if cut is not None:
            text = (
                f"every completion reached the length limit for {FEW} steps: raise "
                "recipe.grpo.max_completion_length, or use a model that ends its answers."
            )
            yield "all_truncated", FEW, cut >= 1.0, text
            text = (
                f"for {MANY} steps, more than {TRUNCATED:.0%} of the completions reached the "
                f"length limit (last step: {cut:.0%}): raise recipe.grpo.max_completion_length."
            )
            yield "truncated", MANY, TRUNCATED < cut < 1.0, text
        yield from self._policy_kinds(now)

    def _policy_kinds(self, now: RolloutFigures) -> Iterator[tuple[str, int, bool, str]]:
        entropy = now.entropy
        if entropy is not None and len(self._first) == FIRST:
            start = sum(self._first) / FIRST
            text = (
                f"entropy fell to {entropy:.2g} nats per token, from {start:.2g} in the first "
                f"{FIRST} steps: the completions of a group become equal. Lower "
                "recipe.learning_rate, or raise recipe.grpo.epsilon_high or temperature."
            )
            yield "entropy", FIRST, entropy < ENTROPY * start, text
        if now.kl is not None:
            text = (
                f"for {FIRST} steps, the KL divergence from the starting model was above {KL:g} "
                f"nats per token (last step: {now.kl:.2g}): lower recipe.learning_rate, or raise "
                "recipe.grpo.beta."
            )
            yield "kl", FIRST, not now.kl <= KL, text
        if now.clip_ratio is not None:
            text = (
                f"for {MANY} steps, more than {CLIPPED:.0%} of the tokens were clipped (last step: "
                f"{now.clip_ratio:.0%}): clipped tokens give no gradient. Lower "
                "recipe.learning_rate or recipe.grpo.num_iterations."
            )
            yield "clip_ratio", MANY, not now.clip_ratio <= CLIPPED, text

"""Comparison of a reinforcement run's first step with plain torch on the stock modules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from tunesmith_worker.engine.rollout import FinishReason
from tunesmith_worker.trainer.methods.groups import ROWS
from tunesmith_worker.trainer.methods.rollouts import Rollout
from tunesmith_worker.trainer.methods.train_noise import differs_in_training
from tunesmith_worker.trainer.selfcheck.check_context import ReinforcementContext
from tunesmith_worker.trainer.selfcheck.findings import Finding
from tunesmith_worker.trainer.selfcheck.model_runs import (
    pop_gradients,
    restored_state,
    stock_modules,
)

from .advantages import check_advantages, check_groups, check_rewards, weighted
from .budget import MemoryLimit, evenly_spaced, memory_limit, time_limit
from .compare import (
    Gradients,
    RunStep,
    check_step,
    describe,
    fault,
    gradients_of,
    parallel_factor,
)
from .expected import ExpectedStep, expected_step, norm_of
from .fed_rows import FedRow
from .limits import changes_with_length, stays_in_eval, tolerance_of, trained_only
from .policy_loss import PolicyLoss, why_no_policy_loss
from .reference import ReferenceCheck, as_row
from .watch import StepReport, unless_memory_runs_out

Untyped = Any  # Any: transformers and TRL are not typed

GRADE_SECONDS = 1.0
"""Time limit for grading completions again."""
FITS = 0.1
_OLD = "old_per_token_logps"
"""Key of a batch under which TRL stores log-probs for later steps on the same completions."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    run: RunStep
    places: frozenset[int]
    """Indices of the compared completions."""
    rows: str
    """Text that says which completions are compared."""
    note: str = ""


class ReinforcementStep:
    def __init__(self, context: ReinforcementContext) -> None:
        self._context = context
        self._reference_check = ReferenceCheck(context)
        self._counted: Rollout | None = None
        """Last rollout whose prompts `examples` has returned."""

    def start(self) -> None:
        return

    def compare(self) -> StepReport:
        trainer, rollout = self._context.trainer, self._rollout
        if rollout is None:
            return StepReport(
                detail="rewards, advantages, loss and gradient were not compared: the step trains "
                "on completions that an earlier attempt generated and trained on"
            )
        findings, count = self._check_rewards(rollout)
        if any(finding.level == "error" for finding in findings):
            return StepReport(detail="", findings=tuple(findings))
        text = f"advantages match the recorded rewards; {self._regraded(count, rollout)}"
        report = self._loss(rollout, trainer.guard.current_step.rows)
        return StepReport(detail=f"{text}; {report.detail}", findings=(*findings, *report.findings))

    def examples(self) -> list[tuple[int, ...]]:
        rollout = self._rollout
        if rollout is None or rollout is self._counted:
            return []  # num_iterations steps train on the same completions
        self._counted = rollout
        return sorted({(row.number,) for row in rollout.prompts})

    @property
    def _rollout(self) -> Rollout | None:
        return getattr(self._context.trainer, "rollout", None)

    def look(self) -> list[Finding]:
        rollout = self._rollout
        findings = [] if rollout is None else self._check_rewards(rollout)[0]
        return [*(one for one in findings if one.level == "error"), *self._reference_check.check()]

    def _check_rewards(self, rollout: Rollout) -> tuple[list[Finding], int]:
        trainer = self._context.trainer
        batch = trainer.guard.current_step.rows
        findings = [
            *self._check_positions(rollout, batch),
            *check_groups([row.number for row in rollout.prompts], trainer.plan.num_generations),
        ]
        graded, count = self._grade_again(rollout)
        findings += graded
        rewards = weighted([one.rewards for one in rollout.graded], trainer.runner.grading.weights)
        findings += check_advantages(rewards, batch["advantages"].tolist(), trainer.plan)
        return findings, count

    def _check_positions(self, rollout: Rollout, batch: Untyped) -> Iterator[Finding]:
        pairs = zip(rollout.prompts, rollout.completions, strict=True)
        expected = [(row.prompt_ids, tuple(done.token_ids)) for row, done in pairs]
        trained = [(row.prompt_ids, row.completion_ids) for row in batch[ROWS]]
        wrong = [i for i, (a, b) in enumerate(zip(expected, trained, strict=False)) if a != b]
        if wrong or len(expected) != len(trained):
            yield fault(
                f"the training batch has {len(trained)} completions, the rollout has "
                f"{len(expected)}: at {len(wrong)} positions, their prompts or completions differ "
                "(tolerance: 0).",
                "advantages",
            )

    def _grade_again(self, rollout: Rollout) -> tuple[list[Finding], int]:
        runner = self._context.trainer.runner
        began, again = time.perf_counter(), []
        for place in range(len(rollout.prompts)):
            if time.perf_counter() - began > GRADE_SECONDS:
                break
            again.append(runner.grade_again(rollout, place))
        count = sum(graded is not None for graded in again)
        rewards = [None if graded is None else graded.rewards[0] for graded in again]
        rewards += [None] * (len(rollout.prompts) - len(again))
        recorded = [one.rewards[0] for one in rollout.graded]
        found = check_rewards(recorded, rewards, self._context.trainer.plan.num_generations)
        return list(found), count

    def _regraded(self, count: int, rollout: Rollout) -> str:
        """Name the rewards that were graded again, and the reason why other rewards were not graded
        again."""
        grading, total = self._context.trainer.runner.grading, len(rollout.completions)
        parts = []
        if grading.grader is not None:
            limit = "" if count == total else f", as many as {GRADE_SECONDS:g} s allowed"
            parts.append(
                f"rewards of {grading.grader} were graded again for {count} of {total} completions"
                f"{limit}"
            )
        if grading.local:
            parts.append(
                f"rewards of {', '.join(grading.local)} were not graded again, because local "
                "reward functions may have side effects"
            )
        return "; ".join(parts)

    def _loss(self, rollout: Rollout, batch: Untyped) -> StepReport:
        rows = [as_row(row.prompt_ids, row.completion_ids) for row in batch[ROWS]]
        if reason := self._why_not(rows):
            return StepReport(detail=f"loss and gradient were not compared: {reason}")
        return unless_memory_runs_out(lambda: self._compare_loss(rollout, batch, rows))

    def _why_not(self, rows: Sequence[FedRow]) -> str:
        trainer, model = self._context.trainer, self._context.model
        if reason := why_no_policy_loss(trainer.plan):
            return reason
        if getattr(trainer, "aux_loss_enabled", False):
            return "the load-balancing loss of experts depends on the micro-batches"
        longest = max(len(row.ids) for row in rows)
        if changes_with_length(model.config, longest):
            return "the model's positions depend on the longest row of a micro-batch"
        return ""

    def _compare_loss(self, rollout: Rollout, batch: Untyped, rows: Sequence[FedRow]) -> StepReport:
        context, trainer = self._context, self._context.trainer
        plan = trainer.plan
        masked = [
            plan.mask_truncated_completions and one.finish_reason is FinishReason.LENGTH
            for one in rollout.completions
        ]
        advantages = batch["advantages"].tolist()
        tokens = [0 if m else row.labelled for m, row in zip(masked, rows, strict=True)]
        trained = [
            place
            for place, (count, advantage) in enumerate(zip(tokens, advantages, strict=True))
            if count and (plan.beta or advantage)
        ]
        memory = memory_limit(context, max((len(rows[i].ids) for i in trained), default=0))
        part = self._part(batch, rows, trained, memory)
        if part is None:
            return StepReport(detail=f"loss and gradient were not compared: {memory.text}")
        run = part.run.only(memory.tensors)
        chosen = [
            row if place in part.places else FedRow(row.ids, ()) for place, row in enumerate(rows)
        ]
        with self._stock(memory.tensors):
            reference = self._reference_check.log_probs(chosen) if plan.beta else {}
            loss = PolicyLoss(plan=plan, advantages=advantages, tokens=tokens, reference=reference)
            expected = expected_step(
                context.model, chosen, loss, context.device, plan.temperature, memory.group_tokens
            )
        found, findings = check_step(
            run, expected, tolerance_of(context), lambda wrong: _cause(wrong, expected)
        )
        detail = describe(part.rows, run, found, memory.tensors) + part.note
        if idle := len(rows) - len(trained):
            detail += f" ({idle} completions have no gradient)"
        return StepReport(detail=detail, findings=tuple(findings))

    def _part(
        self, batch: Untyped, rows: Sequence[FedRow], trained: Sequence[int], memory: MemoryLimit
    ) -> _Part | None:
        """Return the part of the step to compare: the whole step, or a sample of completions that
        the run's own code scores again. Return None if memory is too small for any completion.

        `trained`: indices of the completions with a gradient."""
        context, trainer = self._context, self._context.trainer
        limit, noisy = time_limit(context), differs_in_training(context.model)
        sizes = {place: len(rows[place].ids) for place in trained}
        own = trainer.describe({ROWS: trainer.rows_with_gradient(batch)}).tokens
        fits = memory.longest >= max(sizes.values(), default=0)
        if fits and limit.fits(sum(sizes.values()) / own):  # plain torch shares no prompts
            text = f"all {len(rows)} completions"
            if not noisy:
                return _Part(run=self._whole(), places=frozenset(trained), rows=text)
            note = ", measured on a repetition of the step without dropout"
            run, places = self._repeat(batch), frozenset(trained)
            return _Part(run=run, places=places, rows=text, note=note)
        short = [place for place in trained if sizes[place] <= memory.longest]
        if not short:
            return None
        sample = evenly_spaced([sizes[place] for place in short], limit.sample(own))
        places = frozenset(short[i] for i in sample)
        others = [
            replace(row, skip=row.skip or place not in places)
            for place, row in enumerate(batch[ROWS])
        ]
        # The loss of completions that are left out is a constant, so it is not compared.
        return _Part(
            run=replace(self._repeat(batch | {ROWS: others}), loss=None),
            places=places,
            rows=f"a sample of {len(places)} of {len(trained)} completions with a gradient, with "
            f"{sum(sizes[place] for place in places):,} of {sum(sizes.values()):,} tokens, "
            f"repeated by the run's own code{' without dropout' if noisy else ''}, "
            f"because {limit.text if fits else memory.text}",
        )

    def _whole(self) -> RunStep:
        trainer = self._context.trainer
        return RunStep(
            loss=float(trainer.step_loss),
            norm=float(trainer.guard.norm),
            gradients=gradients_of(self._context.model),
            max_norm=self._context.train_plan.max_grad_norm,
        )

    def _repeat(self, batch: Untyped) -> RunStep:
        context, trainer = self._context, self._context.trainer
        fresh = {name: value for name, value in batch.items() if name != _OLD}
        with restored_state(context.model, context.device), trainer.unmeasured("eval"):
            with stays_in_eval(context.model):
                loss = float(trainer.rerun(fresh))
            gradients = pop_gradients(context.model)
        return RunStep(loss=loss, norm=norm_of(gradients), gradients=gradients)

    @contextmanager
    def _stock(self, tensors: frozenset[str] | None) -> Iterator[None]:
        context = self._context
        with (
            restored_state(context.model, context.device),
            stock_modules(context.patched),
            trained_only(context.model, tensors),
        ):
            yield


def _cause(wrong: Gradients, expected: ExpectedStep) -> str:
    factor = parallel_factor(wrong, expected.gradients, FITS) if expected.norm else None
    if factor is None or abs(factor - 1.0) < FITS / 10:
        return "wrong gradient"
    if abs(factor + 1.0) < FITS / 10:
        return "flipped sign: the step lowers the probability of good completions"
    return f"wrong normaliser: the gradient is {factor:.4g} times the correct gradient"

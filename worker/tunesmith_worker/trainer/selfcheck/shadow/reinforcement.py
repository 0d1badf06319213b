"""Comparison of a reinforcement run's first step with plain torch on the stock modules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tunesmith_worker.engine.memory.free_memory import read_free_memory
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
from .callback import StepReport, unless_memory_runs_out
from .compare import Gradients, RunStep, check_step, fault, gradients_of, parallel_factor
from .expected import ExpectedStep, expected_step
from .fed_rows import FedRow
from .limits import MEMORY_SHARE, bytes_needed, changes_with_length, stays_in_eval, tolerance_of
from .policy_loss import PolicyLoss, why_no_policy_loss
from .reference import ReferenceCheck, as_row

Untyped = Any  # Any: transformers and TRL are not typed

GRADE_SECONDS = 1.0
"""Time limit for grading completions again."""
MOST_TOKENS = 1 << 16
"""Maximum number of tokens of a step whose loss and gradient are compared."""
FITS = 0.1


class ReinforcementStep:
    def __init__(self, context: ReinforcementContext) -> None:
        self._context = context
        self._reference_check = ReferenceCheck(context)
        self._counted: Rollout | None = None
        """The last rollout whose prompts were counted."""

    def start(self) -> None:
        return

    def compare(self) -> StepReport:
        trainer = self._context.trainer
        rollout: Rollout = trainer.rollout
        findings, count = self._check_rewards(rollout)
        if any(finding.level == "error" for finding in findings):
            return StepReport(detail="", findings=tuple(findings))
        text = f"advantages equal those of the recorded rewards, {count} completions graded again"
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
        """Rollout of the step; None if a resumed run trains on completions from before."""
        return getattr(self._context.trainer, "rollout", None)

    def look(self) -> list[Finding]:
        rollout = self._rollout
        findings = [] if rollout is None else self._check_rewards(rollout)[0]
        return [*(one for one in findings if one.level == "error"), *self._reference_check.check()]

    def _check_rewards(self, rollout: Rollout) -> tuple[list[Finding], int]:
        """Return findings, and the number of completions that were graded again."""
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
                f"{len(wrong)} of {len(expected)} completions are trained at another position "
                f"than they were generated (tolerance: 0; {len(trained)} are trained).",
                "advantages",
            )

    def _grade_again(self, rollout: Rollout) -> tuple[list[Finding], int]:
        """Return findings, and the number of completions graded again by the job's grader."""
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
        tokens = sum(len(row.ids) for row in rows)
        if tokens > MOST_TOKENS:
            return f"the step has {tokens:,} tokens, more than {MOST_TOKENS:,}"
        needed = bytes_needed(model, longest)
        free = read_free_memory(trainer.args.device, 0).free
        if needed > MEMORY_SHARE * free:
            return f"it needs {needed >> 20:,} MiB, and {free >> 20:,} MiB are free"
        return ""

    def _compare_loss(self, rollout: Rollout, batch: Untyped, rows: Sequence[FedRow]) -> StepReport:
        context, trainer = self._context, self._context.trainer
        device, plan = context.device, trainer.plan
        masked = [
            plan.mask_truncated_completions and one.finish_reason is FinishReason.LENGTH
            for one in rollout.completions
        ]
        advantages = batch["advantages"].tolist()
        tokens = [0 if m else row.labelled for m, row in zip(masked, rows, strict=True)]
        trained = [
            row if count and (plan.beta or advantage) else FedRow(row.ids, ())
            for row, count, advantage in zip(rows, tokens, advantages, strict=True)
        ]
        noisy = differs_in_training(context.model)
        run = self._run_step(batch, noisy=noisy)
        with self._stock():
            reference = self._reference_check.log_probs(trained) if plan.beta else {}
            loss = PolicyLoss(plan=plan, advantages=advantages, tokens=tokens, reference=reference)
            expected = expected_step(context.model, trained, loss, device, plan.temperature)
        found, findings = check_step(
            run, expected, tolerance_of(context), lambda wrong: _cause(wrong, expected)
        )
        idle = sum(not row.labels for row in trained)
        detail = (
            f"all {len(rows)} completions: loss, gradient norm and gradient equal plain torch on "
            f"the stock modules within {found.loss:.0e}, {found.norm:.0e} and {found.whole:.0e}"
        )
        if idle:
            detail += f" ({idle} completions have no gradient)"
        if noisy:
            detail += ", measured on a repetition of the step without dropout"
        return StepReport(detail=detail, findings=tuple(findings))

    def _run_step(self, batch: Untyped, *, noisy: bool) -> RunStep:
        context, trainer = self._context, self._context.trainer
        max_norm = context.train_plan.max_grad_norm
        if not noisy:
            return RunStep(
                loss=float(trainer.step_loss),
                norm=float(trainer.guard.norm),
                gradients=gradients_of(context.model),
                max_norm=max_norm,
            )
        with restored_state(context.model, context.device), trainer.unmeasured("eval"):
            with stays_in_eval(context.model):
                loss = float(trainer.rerun(batch))
            gradients = pop_gradients(context.model)
        return RunStep(loss=loss, norm=None, gradients=gradients, max_norm=max_norm)

    @contextmanager
    def _stock(self) -> Iterator[None]:
        context = self._context
        with restored_state(context.model, context.device), stock_modules(context.patched):
            yield


def _cause(wrong: Gradients, expected: ExpectedStep) -> str:
    factor = parallel_factor(wrong, expected.gradients, FITS) if expected.norm else None
    if factor is None or abs(factor - 1.0) < FITS / 10:
        return "wrong gradient"
    if abs(factor + 1.0) < FITS / 10:
        return "flipped sign: the step lowers the probability of good completions"
    return f"wrong normaliser: the gradient is {factor:.4g} times the right one"

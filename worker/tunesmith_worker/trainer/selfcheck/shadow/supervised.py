"""Comparison of a supervised run's first step with plain torch on the stock modules."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tunesmith_worker.engine.memory.free_memory import read_free_memory
from tunesmith_worker.trainer.methods.train_noise import differs_in_training
from tunesmith_worker.trainer.selfcheck.check_context import SupervisedContext
from tunesmith_worker.trainer.selfcheck.findings import Finding
from tunesmith_worker.trainer.selfcheck.model_runs import (
    pop_gradients,
    restored_state,
    stock_modules,
)

from .callback import StepReport, unless_memory_runs_out
from .causes import name_cause
from .compare import Gradients, RunStep, check_step, fault, gradients_of
from .data_order import examples_of
from .expected import ExpectedStep, expected_step
from .fed_rows import (
    FedRow,
    FedStep,
    FeedRecorder,
    missing_and_extra,
    rows_of_micro_batch,
    rows_of_step,
)
from .limits import MEMORY_SHARE, bytes_needed, changes_with_length, stays_in_eval, tolerance_of

Untyped = Any  # Any: transformers and TRL are not typed

SECONDS = 5.0
"""The whole step is compared if this takes at most SECONDS, or SHARE of the run's time."""
SHARE = 0.015
COST = 3.0
"""Time of plain torch relative to the run's step (docs/contributing/log/numerics.md)."""
MOST_PARTS = 16
"""Maximum number of micro-batches whose gradients are kept to find a cause."""


class SupervisedStep:
    def __init__(self, context: SupervisedContext) -> None:
        self._context = context
        self._recorder: FeedRecorder | None = None

    def start(self) -> None:
        share = SHARE * self._context.train_plan.total_steps / COST
        self._recorder = FeedRecorder(self._context.trainer, share)

    def compare(self) -> StepReport:
        assert self._recorder is not None, "call start first"
        fed = self._recorder.stop()
        if fed is None:
            return StepReport(detail="", findings=(fault("the model did not run in the step."),))
        rows = rows_of_step(fed.record.rows)
        batches = [rows_of_micro_batch(batch) for batch in fed.batches]
        if findings := self._check_rows(fed, rows, batches):
            return StepReport(detail="", findings=tuple(findings))
        if reason := self._why_not(rows):
            return StepReport(detail=f"loss and gradient were not compared: {reason}")
        return unless_memory_runs_out(lambda: self._compare(fed, rows, batches))

    def examples(self) -> list[tuple[int, ...]]:
        return examples_of(self._context.trainer.guard.current_step.rows)

    def look(self) -> list[Finding]:
        return []

    def _check_rows(
        self, fed: FedStep, rows: Sequence[FedRow], batches: Sequence[Sequence[FedRow]]
    ) -> list[Finding]:
        plan = self._context.train_plan
        missing, extra = missing_and_extra(rows, [row for batch in batches for row in batch])
        if missing or extra:
            return [
                fault(
                    f"{len(missing)} of the step's {len(rows)} rows, with "
                    f"{sum(row.labelled for row in missing)} labels, did not reach the model, and "
                    f"{len(extra)} other rows did (tolerance: 0): a micro-batch is missing, or "
                    "rows were changed on the way."
                )
            ]
        examples = len(fed.record.rows["rows_of_examples"])
        wanted = min(plan.rows_per_step, len(self._context.trainer.train_dataset))
        if examples != wanted:
            return [
                fault(
                    f"the step has {examples} examples, but the recipe's batch has {wanted} "
                    "(tolerance: 0): a micro-batch is missing or repeated."
                )
            ]
        return []

    def _why_not(self, rows: Sequence[FedRow]) -> str:
        trainer = self._context.trainer
        if getattr(trainer, "aux_loss_enabled", False):
            return "the load-balancing loss of experts depends on the micro-batches"
        longest = max(len(row.ids) for row in rows)
        if changes_with_length(self._context.model.config, longest):
            return "the model's positions depend on the longest row of a micro-batch"
        needed = bytes_needed(self._context.model, longest)
        free = read_free_memory(trainer.args.device, 0).free
        if needed > MEMORY_SHARE * free:
            return f"it needs {needed >> 20:,} MiB, and {free >> 20:,} MiB are free"
        return ""

    def _compare(
        self, fed: FedStep, rows: Sequence[FedRow], batches: Sequence[Sequence[FedRow]]
    ) -> StepReport:
        context = self._context
        spent = time.perf_counter() - fed.began
        allowed = max(SECONDS, SHARE * context.train_plan.total_steps * spent)
        sampled = fed.sampled if COST * spent > allowed else None
        labelled = sum(row.labelled for row in rows)
        if sampled is None:
            run, chosen = self._whole(), batches
        else:
            run, chosen = self._sample(fed), batches[:sampled]
        noisy = differs_in_training(context.model)
        if noisy and sampled is not None:
            return StepReport(
                detail="loss and gradient were not compared: a run with dropout repeats the whole "
                "step, which would take too long"
            )
        if noisy:
            run = self._without_noise(fed, run)
        with self._stock():
            expected = self._expected([row for batch in chosen for row in batch], labelled)
        found, findings = check_step(
            run,
            expected,
            tolerance_of(context),
            lambda wrong: self._cause(wrong, expected, chosen, rows),
        )
        what = (
            f"all {len(rows)} rows"
            if sampled is None
            else (
                f"a sample of {sampled} of {len(batches)} micro-batches, because the whole step "
                f"would take more than {allowed:.0f} s"
            )
        )
        detail = (
            f"{what}: loss, gradient norm and gradient equal plain torch on the stock modules "
            f"within {found.loss:.0e}, {found.norm:.0e} and {found.whole:.0e}"
        )
        if sampled is not None:
            detail = (
                f"{what}: the gradient equals plain torch on the stock modules within "
                f"{found.whole:.0e}"
            )
        if noisy:
            detail += ", measured on a repetition of the step without dropout"
        return StepReport(detail=detail, findings=tuple(findings))

    @property
    def _max_norm(self) -> float:
        return self._context.train_plan.max_grad_norm

    def _whole(self) -> RunStep:
        trainer = self._context.trainer
        return RunStep(
            loss=float(trainer.step_loss),
            norm=float(trainer.guard.norm),
            gradients=gradients_of(trainer.model),
            max_norm=self._max_norm,
        )

    def _sample(self, fed: FedStep) -> RunStep:
        return RunStep(loss=None, norm=None, gradients=fed.sampled_gradient, max_norm=0.0)

    def _without_noise(self, fed: FedStep, run: RunStep) -> RunStep:
        """Repeat the run's own step without dropout, with our kernels and the trainer's loss."""
        context, trainer = self._context, self._context.trainer
        with restored_state(context.model, trainer.args.device), trainer.unmeasured("eval"):
            with stays_in_eval(context.model):
                loss = float(trainer.rerun(fed.record.rows, fed.record))
            gradients = pop_gradients(context.model)
        return RunStep(loss=loss, norm=None, gradients=gradients, max_norm=run.max_norm)

    @contextmanager
    def _stock(self) -> Iterator[None]:
        context = self._context
        with (
            restored_state(context.model, context.trainer.args.device),
            stock_modules(context.patched),
        ):
            yield

    def _expected(self, rows: Sequence[FedRow], labelled: int) -> ExpectedStep:
        context = self._context

        def row_loss(place: int, log_probs: torch.Tensor) -> torch.Tensor:
            return -log_probs.sum() / labelled

        return expected_step(context.model, rows, row_loss, context.trainer.args.device)

    def _cause(
        self,
        wrong: Gradients,
        expected: ExpectedStep,
        batches: Sequence[Sequence[FedRow]],
        rows: Sequence[FedRow],
    ) -> str:
        labels = [sum(row.labelled for row in batch) for batch in batches]
        parts: list[ExpectedStep] = []
        if 1 < len(batches) <= MOST_PARTS:
            total = sum(row.labelled for row in rows)
            with self._stock():
                parts = [self._expected(batch, total) for batch in batches]
        return name_cause(wrong, expected, parts, labels)

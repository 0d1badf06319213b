"""Comparison of a supervised run's first step with plain torch on the stock modules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_worker.trainer.methods.batches import collate
from tunesmith_worker.trainer.methods.train_noise import differs_in_training
from tunesmith_worker.trainer.selfcheck.check_context import SupervisedContext
from tunesmith_worker.trainer.selfcheck.findings import Finding
from tunesmith_worker.trainer.selfcheck.model_runs import (
    pop_gradients,
    restored_state,
    stock_modules,
)

from .budget import (
    LEAST_TOKENS,
    MemoryLimit,
    TimeLimit,
    evenly_spaced,
    memory_limit,
    share_of_step,
    time_limit,
)
from .causes import name_cause
from .compare import Gradients, RunStep, check_step, describe, fault, gradients_of
from .data_order import examples_of
from .expected import GROUP_TOKENS, ExpectedStep, expected_step, norm_of
from .fed_rows import (
    FedRow,
    FedStep,
    FeedRecorder,
    missing_and_extra,
    rows_of_micro_batch,
    rows_of_step,
)
from .limits import changes_with_length, stays_in_eval, tolerance_of, trained_only
from .watch import StepReport, unless_memory_runs_out

Untyped = Any  # Any: transformers and TRL are not typed

MOST_PARTS = 16
"""Maximum number of micro-batches whose gradients are kept to find a cause."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    run: RunStep
    batches: Sequence[Sequence[FedRow]]
    """Rows of each compared micro-batch."""
    rows: str
    """Text that says which rows are compared."""
    note: str = ""


class SupervisedStep:
    def __init__(self, context: SupervisedContext) -> None:
        self._context = context
        self._recorder: FeedRecorder | None = None

    def start(self) -> None:
        self._recorder = FeedRecorder(self._context.trainer, share_of_step(self._context))

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
        examples, wanted = len(fed.record.rows["rows_of_examples"]), self._examples_wanted()
        if examples != wanted:
            return [
                fault(
                    f"the step has {examples} examples, but the recipe's batch has {wanted} "
                    "(tolerance: 0): a micro-batch is missing or repeated."
                )
            ]
        return []

    def _examples_wanted(self) -> int:
        trainer, per_step = self._context.trainer, self._context.train_plan.rows_per_step
        examples = len(trainer.train_dataset)
        place: int = trainer.state.global_step % -(-examples // per_step)
        return min(per_step, examples - place * per_step)

    def _why_not(self, rows: Sequence[FedRow]) -> str:
        if getattr(self._context.trainer, "aux_loss_enabled", False):
            return "the load-balancing loss of experts depends on the micro-batches"
        if changes_with_length(self._context.model.config, max(len(row.ids) for row in rows)):
            return "the model's positions depend on the longest row of a micro-batch"
        return ""

    def _compare(
        self, fed: FedStep, rows: Sequence[FedRow], batches: Sequence[Sequence[FedRow]]
    ) -> StepReport:
        context = self._context
        memory = memory_limit(context, max(len(row.ids) for row in rows))
        if memory.longest < LEAST_TOKENS and memory.longest < max(len(row.ids) for row in rows):
            return StepReport(detail=f"loss and gradient were not compared: {memory.text}")
        part = self._part(fed, batches, time_limit(context), memory)
        labelled = sum(row.labelled for row in rows)
        run = part.run.only(memory.tensors)
        with self._stock(memory.tensors):
            compared = [row for batch in part.batches for row in batch]
            expected = self._expected(compared, labelled, memory.group_tokens)
        found, findings = check_step(
            run,
            expected,
            tolerance_of(context),
            lambda wrong: self._cause(wrong, expected, part.batches, labelled, memory.tensors),
        )
        detail = describe(part.rows, run, found, memory.tensors) + part.note
        return StepReport(detail=detail, findings=tuple(findings))

    def _part(
        self,
        fed: FedStep,
        batches: Sequence[Sequence[FedRow]],
        limit: TimeLimit,
        memory: MemoryLimit,
    ) -> _Part:
        """Return the part of the step to compare. The part is the whole step, its first
        micro-batches, or a sample of its rows. If the part is a sample of rows, the run's own code
        repeats the step on these rows."""
        rows = [row for batch in batches for row in batch]
        noisy = differs_in_training(self._context.model)
        fits = memory.longest >= max(len(row.ids) for row in rows)
        if fits and limit.fits(1.0):
            text = f"all {len(rows)} rows"
            if not noisy:
                return _Part(run=self._whole(), batches=batches, rows=text)
            note = ", measured on a repetition of the step without dropout"
            run = self._repeat(fed, fed.record.rows)
            return _Part(run=run, batches=batches, rows=text, note=note)
        first = batches[: fed.sampled or 0]
        if fits and first and not noisy and limit.fits(_tokens(first) / _tokens(batches)):
            text = f"a sample of {len(first)} of {len(batches)} micro-batches"
            return _Part(
                run=RunStep(loss=None, norm=None, gradients=fed.sampled_gradient),
                batches=first,
                rows=f"{text}, because {limit.text}",
            )
        sample = _sample(rows, limit.sample(_tokens(batches)), memory.longest)
        return _Part(
            run=self._repeat(fed, collate([_as_example(row) for row in sample])),
            batches=[sample],
            rows=f"a sample of {len(sample)} of {len(rows)} rows with {_tokens([sample]):,} of "
            f"{_tokens(batches):,} tokens, repeated by the run's own code"
            f"{' without dropout' if noisy else ''}, because {limit.text if fits else memory.text}",
        )

    def _whole(self) -> RunStep:
        trainer = self._context.trainer
        return RunStep(
            loss=float(trainer.step_loss),
            norm=float(trainer.guard.norm),
            gradients=gradients_of(trainer.model),
            max_norm=self._context.train_plan.max_grad_norm,
        )

    def _repeat(self, fed: FedStep, rows: dict[str, Untyped]) -> RunStep:
        """Repeat the run's own step on some rows without dropout, with our kernels and the
        trainer's loss."""
        context, trainer = self._context, self._context.trainer
        with restored_state(context.model, trainer.args.device), trainer.unmeasured("eval"):
            with stays_in_eval(context.model):
                loss = float(trainer.rerun(rows, fed.record))
            gradients = pop_gradients(context.model)
        return RunStep(loss=loss, norm=norm_of(gradients), gradients=gradients)

    @contextmanager
    def _stock(self, tensors: frozenset[str] | None) -> Iterator[None]:
        context = self._context
        device = context.trainer.args.device
        with (
            restored_state(context.model, device),
            stock_modules(context.patched),
            trained_only(context.model, tensors),
        ):
            yield

    def _expected(
        self, rows: Sequence[FedRow], labelled: int, group_tokens: int = GROUP_TOKENS
    ) -> ExpectedStep:
        context = self._context

        def row_loss(place: int, log_probs: torch.Tensor) -> torch.Tensor:
            return -log_probs.sum() / labelled

        device = context.trainer.args.device
        return expected_step(context.model, rows, row_loss, device, group_tokens=group_tokens)

    def _cause(
        self,
        wrong: Gradients,
        expected: ExpectedStep,
        batches: Sequence[Sequence[FedRow]],
        labelled: int,
        tensors: frozenset[str] | None,
    ) -> str:
        labels = [sum(row.labelled for row in batch) for batch in batches]
        parts: list[ExpectedStep] = []
        if 1 < len(batches) <= MOST_PARTS:
            with self._stock(tensors):
                parts = [self._expected(batch, labelled) for batch in batches]
        return name_cause(wrong, expected, parts, labels)


def _tokens(batches: Sequence[Sequence[FedRow]]) -> int:
    return sum(len(row.ids) for batch in batches for row in batch)


def _sample(rows: Sequence[FedRow], tokens: int, longest: int) -> list[FedRow]:
    length = min(longest, tokens)
    cut = [FedRow(row.ids[-length:], row.labels[-length:]) for row in rows]
    cut = [row for row in cut if row.labelled] or cut
    return [cut[place] for place in evenly_spaced([len(row.ids) for row in cut], tokens)]


def _as_example(row: FedRow) -> dict[str, list[int]]:
    return {"input_ids": list(row.ids), "labels": list(row.labels)}

"""Recording of the rows that the model receives in the first step.

A hook on the model's forward pass records the inputs of each micro-batch. With the recorded inputs,
the check finds rows of the data that never reach the model. The model's gradient after the first
micro-batches is also recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import torch

from tunesmith_worker.trainer.data.tokens import IGNORED
from tunesmith_worker.trainer.methods.nan_guard import StepRecord

Untyped = Any  # Any: transformers and TRL are not typed

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FedRow:
    """A row with its labels; IGNORED marks tokens without a label."""

    ids: Tokens
    labels: Tokens

    @property
    def labelled(self) -> int:
        return sum(label != IGNORED for label in self.labels[1:])


def rows_of_step(step: dict[str, Untyped]) -> list[FedRow]:
    """Return the rows of a collated step (methods/batches.py)."""
    ids, labels = step["input_ids"][0].tolist(), step["labels"][0].tolist()
    return _cut(ids, labels, [0, *accumulate(step["lengths"])])


def rows_of_micro_batch(inputs: dict[str, Untyped]) -> list[FedRow]:
    """Return the rows in a model's inputs; the inputs may be padded or concatenated."""
    ids, labels = inputs["input_ids"].tolist(), inputs["labels"].tolist()
    bounds = inputs.get("cu_seq_lens_q")
    if bounds is not None:
        return _cut(ids[0], labels[0], bounds.tolist())
    lengths = inputs["attention_mask"].sum(1).tolist()
    return [
        FedRow(tuple(row[:length]), tuple(row_labels[:length]))
        for row, row_labels, length in zip(ids, labels, lengths, strict=True)
    ]


def _cut(ids: list[int], labels: list[int], bounds: Sequence[int]) -> list[FedRow]:
    return [
        FedRow(tuple(ids[start:stop]), tuple(labels[start:stop]))
        for start, stop in pairwise(bounds)
    ]


@dataclass
class FedStep:
    """Inputs of the model in one step."""

    record: StepRecord
    batches: list[dict[str, Untyped]] = field(default_factory=list)
    """The inputs of each micro-batch."""
    sampled: int | None = None
    """Number of micro-batches whose gradients are in `sampled_gradient`; None if no gradient was
    copied."""
    sampled_gradient: dict[str, torch.Tensor] = field(default_factory=dict)
    """Gradient after the first `sampled` micro-batches."""


class FeedRecorder:
    """Records the inputs of the model's forward passes with gradient, until `stop` is called."""

    def __init__(self, trainer: Untyped, share: float) -> None:
        """`share`: share of the step's micro-batches after which the gradient is copied; 1 or more
        to copy no gradient."""
        self._trainer, self._share = trainer, share
        self._step: FedStep | None = None
        self._hook = trainer.model.register_forward_pre_hook(self._forward, with_kwargs=True)

    def stop(self) -> FedStep | None:
        """Remove the hook. Return the recorded step; None if the model did not run."""
        self._hook.remove()
        return self._step

    def _forward(self, model: Untyped, positional: Untyped, inputs: dict[str, Untyped]) -> None:
        if not (model.training and torch.is_grad_enabled() and "labels" in inputs):
            return
        record = self._trainer.guard.current_step
        if self._step is None or self._step.record is not record:  # also if a step is repeated
            self._step = FedStep(record=record)
        step = self._step
        count = self._trainer.current_gradient_accumulation_steps
        if len(step.batches) == max(1, int(self._share * count)) and self._share < 1:
            step.sampled = len(step.batches)
            step.sampled_gradient = {
                name: p.grad.detach().clone()
                for name, p in model.named_parameters()
                if p.grad is not None
            }
        names = ("input_ids", "labels", "attention_mask", "cu_seq_lens_q")
        step.batches.append({name: inputs[name] for name in names if name in inputs})


def missing_and_extra(
    expected: Sequence[FedRow], fed: Sequence[FedRow]
) -> tuple[list[FedRow], list[FedRow]]:
    """Return the expected rows that the model did not receive, and the received rows that were not
    expected."""
    wanted, received = Counter(expected), Counter(fed)
    return list((wanted - received).elements()), list((received - wanted).elements())

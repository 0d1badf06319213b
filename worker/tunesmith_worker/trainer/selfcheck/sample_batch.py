"""A small piece of the run's own data, laid out as training does, padded, and row by row.

Shapes: T tokens of all rows, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunesmith_worker.trainer.auto.layout_choice import Layout
from tunesmith_worker.trainer.data.tokens import IGNORED
from tunesmith_worker.trainer.methods.batches import Batch, split

from .check_context import Subject, Untyped

LENGTHS = (64, 48, 33, 17)
"""Tokens of each row at the most: unequal, as crossing rows and padding show only there."""

Row = tuple[list[int], list[int]]
"""Token ids and labels."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    in_use: Batch
    """One micro-batch of all rows, in the layout that training uses."""
    padded: Batch
    """The same rows side by side, as stock trainers have them."""
    alone: tuple[Batch, ...]
    """Each row in a batch of its own, made here and not by what lays out batches."""
    padded_in_use: bool

    @property
    def attends(self) -> bool:
        """Whether a label is predicted from where attention has a choice: not in rows of two
        tokens, whose queries and keys have no gradient."""
        return any(bool((one["labels"][0, 2:] != IGNORED).any()) for one in self.alone)

    @property
    def tokens(self) -> int:
        return sum(one["input_ids"].numel() for one in self.alone)


def take_piece(subject: Subject) -> Piece:
    rows = _windows(subject.trainer.train_dataset)
    examples = [{"input_ids": ids, "labels": labels} for ids, labels in rows]
    step = subject.trainer.data_collator(examples)
    pad = subject.base.tokenizer.pad_token_id
    settled = subject.layouts.chosen
    whole = replace(settled, rows=len(rows))
    if settled.kind == "packed":
        whole = replace(settled, tokens=sum(len(ids) for ids, _ in rows))
    (in_use,) = split(step, whole, pad_token_id=pad)
    (padded,) = split(step, Layout(kind="padded", rows=len(rows)), pad_token_id=pad)
    is_padded = settled.kind == "padded"
    return Piece(
        in_use=in_use,
        padded=padded,
        alone=tuple(_alone(row, padded=is_padded) for row in rows),
        padded_in_use=is_padded,
    )


def _windows(dataset: Untyped) -> list[Row]:
    """Parts of rows from all over the data, each around its first label. Rows without a label are
    passed over: some have one, or `labels` has ended the run."""
    spread = [len(dataset) * i // len(LENGTHS) for i in range(len(LENGTHS))]
    found: list[Row] = []
    for index, place in enumerate((*spread, *range(len(dataset)))):
        if len(found) == len(LENGTHS) or (found and index >= len(LENGTHS)):
            break
        for ids, labels in _rows(dataset[place]):
            first = next((i for i, one in enumerate(labels) if one != IGNORED and i), None)
            if first is not None:
                limit = LENGTHS[len(found)]
                stop = min(len(ids), first + limit // 2 + 1)
                start = max(0, stop - limit)
                found.append((ids[start:stop], labels[start:stop]))
                break
    return found


def _rows(example: dict[str, Any]) -> Sequence[Row]:  # Any: a row of a datasets.Dataset
    """One, or those of a pack."""
    ids, labels = example["input_ids"], example["labels"]
    rows, start = [], 0
    for length in example.get("seq_lengths") or [len(ids)]:
        rows.append((ids[start : start + length], labels[start : start + length]))
        start += length
    return rows


def _alone(row: Row, *, padded: bool) -> Batch:
    """A batch of one row: with a mask that hides nothing, or with its bounds."""
    ids, labels = (torch.tensor(one)[None] for one in row)
    labels[0, 0] = IGNORED
    length = ids.shape[1]
    batch: Batch = {"input_ids": ids, "labels": labels}
    if padded:
        return batch | {"attention_mask": torch.ones_like(ids)}
    bounds = torch.tensor([0, length], dtype=torch.int32)
    return batch | {
        "position_ids": torch.arange(length)[None],
        "cu_seq_lens_q": bounds,
        "cu_seq_lens_k": bounds,
        "max_length_q": length,
        "max_length_k": length,
    }

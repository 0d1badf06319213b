"""Four rows of the run's data in three layouts: as in training, padded, and one row per batch.

The last row is long (row_lengths.py); the first three rows are short.

Shapes: T is the number of tokens in all rows, B the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tunesmith_worker.trainer.auto.layout_choice import Layout
from tunesmith_worker.trainer.data.tokens import IGNORED
from tunesmith_worker.trainer.methods.batches import Batch, split

from .check_context import SupervisedContext, Untyped
from .row_lengths import longest_row

SHORT = (48, 33, 17)
"""Maximum number of tokens of each row except the longest row.

Row lengths differ, because equal lengths hide attention across rows.
"""
LAST = 8
"""Number of tokens with a label, at the end of the longest row."""

IdsAndLabels = tuple[list[int], list[int]]
"""Token ids and labels of a row."""


@dataclass(frozen=True, kw_only=True)
class SampleBatch:
    """The same rows in three micro-batch layouts."""

    training_layout: Batch
    """One micro-batch of all rows, in the training layout."""
    padded: Batch
    """All rows padded to one length, as in stock trainers."""
    single_rows: tuple[Batch, ...]
    """One batch for each row, built without `batches.split`."""
    trains_padded: bool

    @property
    def trains_attention(self) -> bool:
        """True if the query and key weights have a gradient.

        If attention sees only one token, its result does not depend on queries and keys. Therefore,
        at least one row must have a label after its second token.
        """
        return any(bool((row["labels"][0, 2:] != IGNORED).any()) for row in self.single_rows)

    @property
    def tokens(self) -> int:
        return sum(row["input_ids"].numel() for row in self.single_rows)


def make_sample_batch(context: SupervisedContext) -> SampleBatch:
    longest = longest_row(
        context.model.config,
        int(max(context.training.lengths, default=0)),
        torch.float32 if context.load_plan.precision == "fp32" else torch.bfloat16,
        context.trainer.args.device,
    )
    rows = _select_rows(context.trainer.train_dataset, longest)
    examples = [{"input_ids": ids, "labels": labels} for ids, labels in rows]
    step = context.trainer.data_collator(examples)
    pad = context.base.tokenizer.pad_token_id
    chosen = context.layouts.chosen
    layout = replace(chosen, rows=len(rows))
    if chosen.kind == "packed":
        layout = replace(chosen, tokens=sum(len(ids) for ids, _ in rows))
    (training_layout,) = split(step, layout, pad_token_id=pad)
    (padded,) = split(step, Layout(kind="padded", rows=len(rows)), pad_token_id=pad)
    is_padded = chosen.kind == "padded"
    return SampleBatch(
        training_layout=training_layout,
        padded=padded,
        single_rows=tuple(_single_row(row, padded=is_padded) for row in rows),
        trains_padded=is_padded,
    )


def _select_rows(dataset: Untyped, longest: int) -> list[IdsAndLabels]:
    """Return short parts of some rows, and one row of `longest` tokens. The short parts come from
    evenly spaced rows; each part contains the first label of its row.

    The long row has most of the labels and comes last. Therefore, if a fault lets rows attend to
    earlier rows, the results of most labels change. Rows without a label are skipped;
    `check_labels` fails if no row has a label."""
    count = len(SHORT) + 1
    spread = [len(dataset) * i // count for i in range(count)]
    windows: list[IdsAndLabels] = []
    for index, place in enumerate((*spread, *range(len(dataset)))):
        if len(windows) == len(SHORT) or (windows and index >= count):
            break
        for ids, labels in _unpack(dataset[place]):
            first = next((i for i, label in enumerate(labels) if label != IGNORED and i), None)
            if first is not None:
                limit = SHORT[len(windows)]
                stop = min(len(ids), first + limit // 2 + 1)
                start = max(0, stop - limit)
                windows.append((ids[start:stop], labels[start:stop]))
                break
    return [*windows, _long_row(dataset, spread[-1], longest)]


def _long_row(dataset: Untyped, place: int, tokens: int) -> IdsAndLabels:
    """Concatenate examples from index `place` on, and return the first `tokens` tokens as a row."""
    ids: list[int] = []
    labels: list[int] = []
    while len(ids) < tokens:
        example = dataset[place % len(dataset)]
        ids, labels = [*ids, *example["input_ids"]], [*labels, *example["labels"]]
        place += 1
    ids, labels = ids[:tokens], labels[:tokens]
    return ids, [*labels[:-LAST], *ids[-LAST:]]  # so that the last tile gets a gradient too


def _unpack(example: dict[str, Any]) -> Sequence[IdsAndLabels]:  # Any: a row of a datasets.Dataset
    ids, labels = example["input_ids"], example["labels"]
    rows, start = [], 0
    for length in example.get("seq_lengths") or [len(ids)]:
        rows.append((ids[start : start + length], labels[start : start + length]))
        start += length
    return rows


def _single_row(row: IdsAndLabels, *, padded: bool) -> Batch:
    """Return a batch of one row. If `padded`, the batch has an attention mask of ones; otherwise,
    it has the start and end index of the row."""
    ids, labels = (torch.tensor(values)[None] for values in row)
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

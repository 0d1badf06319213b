"""Collate the rows of a step, split them into micro-batches and copy them to the device.

The layout of the micro-batches changes only speed and memory: the loss is always normalised over
the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import torch

from tunesmith_worker.engine.patches.batch_layout import BatchLayout
from tunesmith_worker.trainer.auto.layout_choice import Layout
from tunesmith_worker.trainer.data.tokens import IGNORED

Batch = dict[str, Any]  # Any: tensors, and numbers of TRL's padding-free collator


def collate(examples: Sequence[dict[str, Any]]) -> Batch:  # Any: rows of a datasets.Dataset
    """Concatenate the examples of a step. An example is one row, or several packed rows with
    `seq_lengths`.

    Returns `input_ids`, `labels`: int64 [1, T]. `lengths`: number of tokens in each row, as a
    tuple. `rows_of_examples`: number of rows in each example; 1 without packing.
    """
    lengths = [tuple(row.get("seq_lengths") or [len(row["input_ids"])]) for row in examples]
    ids = torch.tensor([*chain.from_iterable(row["input_ids"] for row in examples)])[None]
    labels = torch.tensor([*chain.from_iterable(row["labels"] for row in examples)])[None]
    flat = tuple(chain.from_iterable(lengths))
    starts = [0, *accumulate(flat[:-1])]
    labels[0, starts] = IGNORED  # a row's first token is not predicted
    return {
        "input_ids": ids,
        "labels": labels,
        "lengths": flat,
        "rows_of_examples": tuple(map(len, lengths)),
    }


@dataclass(frozen=True, slots=True)
class _TokenRow:
    input_ids: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.input_ids)


def split(step: Batch, layout: Layout, *, pad_token_id: int) -> list[Batch]:
    """Split a collated step into micro-batches on the same device."""
    rows = _rows(step)
    if layout.kind == "packed":
        assert layout.tokens is not None, "a packed layout has a token limit"
        bins = fill_bins([len(row) for row in rows], layout.tokens)
        return [_end_to_end([rows[i] for i in indices]) for indices in bins]
    assert layout.rows is not None, "other layouts have a row limit"
    bins = _in_order(step["rows_of_examples"], layout.rows)
    if layout.kind == "padded":
        return [_side_by_side([rows[i] for i in indices], pad_token_id) for indices in bins]
    bins = _balanced([len(row) for row in rows], bins)
    return [_end_to_end([rows[i] for i in indices]) for indices in bins]


def _rows(step: Batch) -> list[_TokenRow]:
    ids, labels = step["input_ids"][0], step["labels"][0]
    bounds = [0, *accumulate(step["lengths"])]
    return [_TokenRow(ids[start:stop], labels[start:stop]) for start, stop in pairwise(bounds)]


def _in_order(rows_of_examples: Sequence[int], examples: int) -> list[list[int]]:
    """Group the row indices: each group has the rows of `examples` consecutive examples."""
    bounds = [0, *accumulate(rows_of_examples)]
    edges = [*bounds[::examples]]
    if edges[-1] != bounds[-1]:
        edges.append(bounds[-1])
    return [list(range(start, stop)) for start, stop in pairwise(edges)]


def _balanced(lengths: Sequence[int], bins: list[list[int]]) -> list[list[int]]:
    """Redistribute the rows of `bins` over as many new bins, so that all bins have about the same
    number of tokens. If the largest bin does not become smaller, return `bins`. The largest bin
    determines the peak memory."""
    if len(bins) < 2:
        return bins
    balanced = _spread(lengths, len(bins))
    most, before = (max(sum(lengths[i] for i in rows) for rows in b) for b in (balanced, bins))
    return bins if most >= before else balanced


def fill_bins(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Spread rows over few bins of at most `tokens` tokens.

    If a row is longer than `tokens`, a bin may have as many tokens as the longest row.
    """
    limit = max(tokens, *lengths)
    count = max(1, -(-sum(lengths) // limit))
    while True:
        bins = _spread(lengths, count)
        if max(sum(lengths[i] for i in rows) for rows in bins) <= limit:
            return bins
        count += 1


def _spread(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Assign the longest rows first, each to the bin with the fewest tokens.

    The size of the largest bin is at most a third above its smallest possible size
    (https://doi.org/10.1137/0117039). Within a bin, rows keep their order."""
    bins: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        lightest = min(range(count), key=lambda i: (sizes[i], len(bins[i])))
        bins[lightest].append(index)
        sizes[lightest] += lengths[index]
    return [sorted(rows) for rows in bins if rows]


def _side_by_side(rows: Sequence[_TokenRow], pad_token_id: int) -> Batch:
    """Pad rows on the right to the longest row's length, like TRL's collator."""

    def pad(tensors: list[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    return {
        "input_ids": pad([row.input_ids for row in rows], pad_token_id),
        "labels": pad([row.labels for row in rows], IGNORED),
        "attention_mask": pad([torch.ones_like(row.input_ids) for row in rows], 0),
    }


def _end_to_end(rows: Sequence[_TokenRow]) -> Batch:
    """Concatenate rows like TRL's padding-free collator."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)])
    device = rows[0].input_ids.device
    positions = [torch.arange(len(row), device=device) for row in rows]
    index = torch.arange(len(rows), dtype=torch.int32).repeat_interleave(lengths)
    longest = int(lengths.max())
    return {
        "input_ids": torch.cat([row.input_ids for row in rows])[None],
        "labels": torch.cat([row.labels for row in rows])[None],
        "position_ids": torch.cat(positions)[None],
        "cu_seq_lens_q": ends.to(device),
        "cu_seq_lens_k": ends.to(device),
        "max_length_q": longest,
        "max_length_k": longest,
        "seq_idx": index[None].to(device),
    }


def predicting_tokens(rows: Batch) -> torch.Tensor:
    """Return the ids of all tokens that precede a labelled token in a collated step, without
    duplicates."""
    labelled = rows["labels"][0, 1:] != IGNORED
    ids: torch.Tensor = rows["input_ids"][0, :-1][labelled].unique()
    return ids


LAYOUT = "layout"
"""Key under which a batch stores its BatchLayout until the forward pass."""


def batch_to_device(batch: Batch, device: torch.device) -> Batch:
    """Copy a batch to `device` asynchronously, and add the BatchLayout of the batch."""
    cumulative = batch.get("cu_seq_lens_q")
    labelled = (batch["labels"][:, 1:] != IGNORED).flatten().nonzero()[:, 0]
    layout = BatchLayout(
        bounds=None if cumulative is None else tuple(cumulative.tolist()),
        labelled=to_device(labelled, device),
    )
    return {**{name: to_device(value, device) for name, value in batch.items()}, LAYOUT: layout}


def to_device(value: Any, device: torch.device) -> Any:  # Any: tensors; numbers are returned as is
    """Copy a tensor to `device` asynchronously.

    The tensor is pinned first: a copy from pageable memory waits for all launched kernels."""
    if not isinstance(value, torch.Tensor) or device.type != "cuda":
        return value.to(device) if isinstance(value, torch.Tensor) else value
    return value.pin_memory().to(device, non_blocking=True)

"""The rows of one optimiser step, shared out so that its micro-batches have about equal tokens.

Rows that stand end to end need no common length, so any row may go into any micro-batch: the
largest one, which decides peak memory (and what other ranks wait for), gets smaller. The step's
rows stay the same, and so does its gradient: the loss is normalised over the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

Batch = dict[str, Any]  # Any: tensors, and numbers of TRL's padding-free collator


@dataclass(frozen=True, slots=True)
class _Row:
    input_ids: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.input_ids)


def balance(batches: Sequence[Batch]) -> list[Batch]:
    """Padding-free batches in, as many out. Longest rows first, each to the batch with the fewest
    tokens (https://doi.org/10.1137/0117039: at most a third above the best there is); within a
    batch, rows keep their order."""
    if len(batches) < 2 or any("cu_seq_lens_q" not in batch for batch in batches):
        return list(batches)
    rows = [row for batch in batches for row in _rows(batch)]
    bins = _bins(rows, len(batches))
    largest = max(sum(len(rows[index]) for index in chosen) for chosen in bins)
    if largest >= max(batch["input_ids"].shape[1] for batch in batches):
        return list(batches)
    return [_batch([rows[index] for index in chosen]) for chosen in bins]


def split(batch: Batch, parts: int) -> list[Batch]:
    """`parts` batches of about equal tokens (fewer where there are fewer rows) with the same rows;
    padded rows are cut to the longest of their part."""
    if "cu_seq_lens_q" in batch:
        rows = _rows(batch)
        chosen = _bins(rows, min(parts, len(rows)))
        return [_batch([rows[index] for index in one]) for one in chosen]
    lengths = batch["attention_mask"].sum(1)
    order = lengths.argsort(descending=True, stable=True).tensor_split(min(parts, len(lengths)))
    return [_padded(batch, rows.sort().values, int(lengths[rows].max())) for rows in order]


def _bins(rows: Sequence[_Row], count: int) -> list[list[int]]:
    """Longest rows first, each to the bin with the fewest tokens."""
    bins: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for index in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        lightest = min(range(count), key=lambda i: (sizes[i], len(bins[i])))
        bins[lightest].append(index)
        sizes[lightest] += len(rows[index])
    return [sorted(chosen) for chosen in bins]


def _padded(batch: Batch, rows: torch.Tensor, longest: int) -> Batch:
    """Those rows of a batch that is padded on the right, at least one token long."""
    shape = batch["input_ids"].shape
    return {
        name: value[rows, : max(1, longest)]
        if isinstance(value, torch.Tensor) and value.shape[:2] == shape
        else value
        for name, value in batch.items()
    }


def _rows(batch: Batch) -> list[_Row]:
    bounds = batch["cu_seq_lens_q"].tolist()
    ids, labels = batch["input_ids"][0], batch["labels"][0]
    return [_Row(ids[start:stop], labels[start:stop]) for start, stop in pairwise(bounds)]


def _batch(rows: Sequence[_Row]) -> Batch:
    """As TRL's padding-free collator lays rows."""
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

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
    bins: list[list[int]] = [[] for _ in batches]
    sizes = [0] * len(batches)
    for index in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        lightest = min(range(len(sizes)), key=lambda i: (sizes[i], len(bins[i])))
        bins[lightest].append(index)
        sizes[lightest] += len(rows[index])
    if max(sizes) >= max(batch["input_ids"].shape[1] for batch in batches):
        return list(batches)
    return [_batch([rows[index] for index in sorted(chosen)]) for chosen in bins]


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

"""The rows of one optimiser step: collated end to end, then laid out into micro-batches.

How rows are laid out changes the step's speed and memory, not its rows nor its loss, which is
normalised over the whole step. Knows nothing of which layout is best.
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
    """Rows (or packs, which say where theirs end in `seq_lengths`) of a step, end to end.

    `input_ids`, `labels`: int64 [1, T]. `lengths`: of every row, on the host. `rows_of_examples`:
    how many rows each example has, 1 unless it is a pack.
    """
    lengths = [tuple(one.get("seq_lengths") or [len(one["input_ids"])]) for one in examples]
    ids = torch.tensor([*chain.from_iterable(one["input_ids"] for one in examples)])[None]
    labels = torch.tensor([*chain.from_iterable(one["labels"] for one in examples)])[None]
    flat = tuple(chain.from_iterable(lengths))
    starts = [0, *accumulate(flat[:-1])]
    labels[0, starts] = IGNORED  # nothing of its own row precedes it
    return {
        "input_ids": ids,
        "labels": labels,
        "lengths": flat,
        "rows_of_examples": tuple(map(len, lengths)),
    }


@dataclass(frozen=True, slots=True)
class _Row:
    input_ids: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.input_ids)


def split(step: Batch, layout: Layout, *, pad_token_id: int) -> list[Batch]:
    """A collated step's micro-batches. Their tensors are where the step's are."""
    rows = _rows(step)
    if layout.kind == "packed":
        assert layout.tokens is not None, "packed: filled by tokens"
        bins = fill_bins([len(row) for row in rows], layout.tokens)
        return [_end_to_end([rows[i] for i in chosen]) for chosen in bins]
    assert layout.rows is not None, "filled by rows"
    bins = _in_order(step["rows_of_examples"], layout.rows)
    if layout.kind == "padded":
        return [_side_by_side([rows[i] for i in chosen], pad_token_id) for chosen in bins]
    bins = _balanced([len(row) for row in rows], bins)
    return [_end_to_end([rows[i] for i in chosen]) for chosen in bins]


def count_slots(batches: Sequence[Batch]) -> int:
    """Places for tokens that are computed, padding included."""
    return sum(batch["input_ids"].numel() for batch in batches)


def _rows(step: Batch) -> list[_Row]:
    ids, labels = step["input_ids"][0], step["labels"][0]
    bounds = [0, *accumulate(step["lengths"])]
    return [_Row(ids[start:stop], labels[start:stop]) for start, stop in pairwise(bounds)]


def _in_order(rows_of_examples: Sequence[int], examples: int) -> list[list[int]]:
    """The rows of every `examples` examples."""
    bounds = [0, *accumulate(rows_of_examples)]
    edges = [*bounds[::examples]]
    if edges[-1] != bounds[-1]:
        edges.append(bounds[-1])
    return [list(range(start, stop)) for start, stop in pairwise(edges)]


def _balanced(lengths: Sequence[int], bins: list[list[int]]) -> list[list[int]]:
    """As many bins of about equal tokens: the largest, which decides peak memory (and what other
    ranks wait for), gets smaller. As they are, if that does not help."""
    if len(bins) < 2:
        return bins
    shared = _shared(lengths, len(bins))
    most, before = (max(sum(lengths[i] for i in one) for one in b) for b in (shared, bins))
    return bins if most >= before else shared


def fill_bins(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """The fewest bins that sharing out gives with at most `tokens` in each; a row that is longer
    stands alone."""
    limit = max(tokens, *lengths)
    count = max(1, -(-sum(lengths) // limit))
    while True:
        bins = _shared(lengths, count)
        if max(sum(lengths[i] for i in one) for one in bins) <= limit:
            return bins
        count += 1


def _shared(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Longest rows first, each to the bin with the fewest tokens
    (https://doi.org/10.1137/0117039: at most a third above the best there is); within a bin, rows
    keep their order."""
    bins: list[list[int]] = [[] for _ in range(count)]
    sizes = [0] * count
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        lightest = min(range(count), key=lambda i: (sizes[i], len(bins[i])))
        bins[lightest].append(index)
        sizes[lightest] += lengths[index]
    return [sorted(one) for one in bins if one]


def _side_by_side(rows: Sequence[_Row], pad_token_id: int) -> Batch:
    """As TRL's collator pads rows: on the right, to the longest."""

    def pad(tensors: list[torch.Tensor], value: int) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)

    return {
        "input_ids": pad([row.input_ids for row in rows], pad_token_id),
        "labels": pad([row.labels for row in rows], IGNORED),
        "attention_mask": pad([torch.ones_like(row.input_ids) for row in rows], 0),
    }


def _end_to_end(rows: Sequence[_Row]) -> Batch:
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


def predicting_tokens(rows: Batch) -> torch.Tensor:
    """Ids of a collated step's tokens whose next one carries loss, each once."""
    labelled = rows["labels"][0, 1:] != IGNORED
    found: torch.Tensor = rows["input_ids"][0, :-1][labelled].unique()
    return found


LAYOUT = "layout"
"""The batch's key for its BatchLayout, which is the trainer's and no model's."""


def batch_to_device(batch: Batch, device: torch.device) -> Batch:
    """A batch of the host's, on `device` with its layout."""
    cumulative = batch.get("cu_seq_lens_q")
    labelled = (batch["labels"][:, 1:] != IGNORED).flatten().nonzero()[:, 0]
    layout = BatchLayout(
        bounds=None if cumulative is None else tuple(cumulative.tolist()),
        labelled=to_device(labelled, device),
    )
    return {**{name: to_device(value, device) for name, value in batch.items()}, LAYOUT: layout}


def to_device(value: Any, device: torch.device) -> Any:  # Any: tensors, and numbers, which stay
    if not isinstance(value, torch.Tensor) or device.type != "cuda":
        return value.to(device) if isinstance(value, torch.Tensor) else value
    return value.pin_memory().to(device, non_blocking=True)

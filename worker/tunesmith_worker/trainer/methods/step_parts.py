"""A step's completions as the loss takes them: rows that keep their group, in tensors as TRL lays
them out, and in parts where memory asks for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .groups import RowOfGroup

Inputs = dict[str, Any]  # Any: tensors as TRL names them, and `rows`
ROWS = "rows"
"""The key under which a batch has its rows."""
SHARE = "share"
"""The key under which a part has what its loss counts in the step's."""
_BY_ROWS = ("grpo", "sapo", "luspo", "dr_grpo")
"""Losses that are means over rows; bnpo's is one over tokens, the others divide by a number of the
whole step."""


def in_parts(inputs: Inputs, parts: int, loss_type: str) -> list[Inputs]:
    """Whole groups shared out by tokens; within them, rows where there are fewer groups. The
    parts' losses, each times its share, sum to the step's."""
    rows: list[RowOfGroup] = inputs[ROWS]
    if parts <= 1 or len(rows) <= 1:
        return [inputs | {SHARE: 1.0}]
    tokens = float(inputs["completion_mask"].sum())
    found = []
    for indices in _shared_out(rows, min(parts, len(rows))):
        part = {name: _taken(one, indices, len(rows)) for name, one in inputs.items()}
        part[ROWS] = [rows[index] for index in indices]
        part[SHARE] = 1.0
        if loss_type in _BY_ROWS:
            part[SHARE] = len(indices) / len(rows)
        elif loss_type == "bnpo":
            part[SHARE] = float(part["completion_mask"].sum()) / max(tokens, 1.0)
        found.append(part)
    return found


def _taken(value: Any, indices: list[int], rows: int) -> Any:  # Any: what a batch holds
    if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape[0] == rows:
        return value[torch.tensor(indices, device=value.device)]
    return value


def _shared_out(rows: Sequence[RowOfGroup], parts: int) -> list[list[int]]:
    """Consecutive rows of one prompt after the other, cut into `parts` runs of about equal
    tokens."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        by_prompt.setdefault(row.prompt_ids, []).append(index)
    order = [index for group in by_prompt.values() for index in group]
    sizes = [len(rows[index].completion_ids) + 1 for index in order]
    whole, found, done = sum(sizes), [[order[0]]], sizes[0]
    for place, (index, size) in enumerate(zip(order[1:], sizes[1:], strict=True), start=1):
        rest = parts - len(found)
        due = done >= whole * len(found) / parts or len(order) - place <= rest
        if rest and due:
            found.append([])
        found[-1].append(index)
        done += size
    return found

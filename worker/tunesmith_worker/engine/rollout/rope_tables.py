"""RoPE cosines and sines.

The model's own RoPE module computes the cosines and sines. For every RoPE scaling, the decoder and
the training forward therefore use the same cosines and sines, bit for bit.

With the scalings `longrope` and `dynamic`, the frequencies depend on the sequence length. The
scaling `longrope` has two sets of frequencies: one for lengths up to the original context length,
and one for greater lengths. The scaling `dynamic` has a separate set of frequencies for each length
above the original context length. Cached keys are valid for only one set of RoPE frequencies.
`rope_key` identifies a sequence's set of frequencies. If a sequence's set of frequencies changes,
the cached keys are recomputed.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed

_STATIC = 0
"""`rope_key` of frequencies that do not depend on the sequence length."""
_BLOCK = 256


@dataclass(frozen=True)
class RopeTable:
    """Cosines and sines of positions 0 to P - 1 in fp32. R is the number of rotated elements per
    head."""

    cos: torch.Tensor
    """Cosines, [P, R/2]; `sin` has the same shape."""
    sin: torch.Tensor
    doubled: torch.Tensor
    """`[cos | cos]` and `[-sin | sin]`, [P, 2, R], to rotate with few operations."""


class RopeTables:
    """RoPE tables of one model."""

    def __init__(self, rotary: Untyped, dtype: torch.dtype, device: torch.device) -> None:
        """`rotary`: transformers' RoPE module. `dtype`: dtype of the hidden states. transformers'
        RoPE module rounds cosines and sines to this dtype."""
        kinds = rotary.rope_type
        by_type = kinds if isinstance(kinds, dict) else {None: kinds}
        self._rotary = copy.deepcopy(rotary)  # Copy the module, because each use changes its state.
        self._kinds: dict[str | None, str] = by_type
        self._dtype, self._device = dtype, device
        self._tables: dict[tuple[str | None, int], RopeTable] = {}
        limits = [self._limit(name) for name in by_type]
        self.stable_length: int | None = min((n for n in limits if n is not None), default=None)
        """Greatest sequence length before the frequencies change; None if they never change. The
        earlier tokens of a longer sequence were sampled with other frequencies than the training
        forward uses."""

    def rope_key(self, length: int) -> int:
        """Return the key of the RoPE frequencies for a sequence of `length` tokens."""
        if self.stable_length is None or length <= self.stable_length:
            return _STATIC
        dynamic = any("dynamic" in kind for kind in self._kinds.values())
        return length if dynamic else self.stable_length + 1

    def table(self, layer_type: str | None, rope_key: int, length: int) -> RopeTable:
        """Return a table with at least `length` positions. If the frequencies of `rope_key` are
        valid for fewer positions, the table has only these positions."""
        key = (layer_type if layer_type in self._kinds else None, rope_key)
        length = min(length, self._max_positions(*key))
        table = self._tables.get(key)
        if table is None or len(table.cos) < length:
            if len(self._tables) > 64:  # old keys of dynamic scaling are not used again
                self._tables.clear()
            table = self._tables[key] = self._compute_table(key[0], rope_key, length)
        return table

    def _compute_table(self, layer_type: str | None, rope_key: int, length: int) -> RopeTable:
        length = max(
            rope_key, min(-(-length // _BLOCK) * _BLOCK, self._max_positions(layer_type, rope_key))
        )
        rotary = copy.deepcopy(self._rotary)
        _reset_frequencies(rotary, layer_type)
        positions = torch.arange(length, device=self._device)[None]
        x = torch.empty(1, 0, dtype=self._dtype, device=self._device)
        type_args = () if layer_type is None else (layer_type,)
        cos, sin = rotary(x, positions, *type_args)
        half = cos.shape[-1] // 2
        cos, sin = (t[0, :, :half].float().contiguous() for t in (cos, sin))
        pairs = [torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]
        return RopeTable(cos, sin, torch.stack(pairs, 1))

    def _max_positions(self, layer_type: str | None, rope_key: int) -> int:
        limit = self._limit(layer_type)
        if limit is None:
            return sys.maxsize
        if rope_key == _STATIC:
            return limit
        # With dynamic scaling, the module derives the sequence length from the positions.
        return rope_key if "dynamic" in self._kinds[layer_type] else sys.maxsize

    def _limit(self, layer_type: str | None) -> int | None:
        """Return the greatest sequence length before the frequencies change; None if they never
        change."""
        kind = self._kinds[layer_type]
        if "dynamic" in kind:
            return int(self._rotary.original_max_seq_len)
        if kind == "longrope":
            parameters = self._rotary.config.rope_parameters
            if layer_type is not None:
                parameters = parameters[layer_type]
            return int(parameters["original_max_position_embeddings"])
        return None


def _reset_frequencies(rotary: Untyped, layer_type: str | None) -> None:
    prefix = "" if layer_type is None else f"{layer_type}_"
    original = getattr(rotary, f"{prefix}original_inv_freq", None)
    if original is not None:
        setattr(rotary, f"{prefix}inv_freq", original.clone())
        setattr(rotary, f"{prefix}max_seq_len_cached", rotary.original_max_seq_len)

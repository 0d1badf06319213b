"""RoPE cosines and sines, computed by the model's own module, so that every scaling gives the bits
of the training forward.

Two scalings choose the frequencies by the length of the sequence: longrope (two sets, below and
above the original context) and dynamic (one set per length above the original context). Cached keys
are valid for one set only. `rope_key` names the set of a sequence; when the key of a sequence
changes, its keys are recomputed.
"""

from __future__ import annotations

import copy
import sys
from dataclasses import dataclass
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed

_STATIC = 0
"""`rope_key` of sequences whose frequencies do not depend on the length."""
_BLOCK = 256


@dataclass(frozen=True)
class RopeTable:
    """Cosines and sines of positions 0 to P - 1, fp32; R rotated elements per head."""

    cos: torch.Tensor
    """[P, R/2]"""
    sin: torch.Tensor
    doubled: torch.Tensor
    """[cos | cos] and [-sin | sin], [P, 2, R], for a rotation in few operations."""


class RopeTables:
    """RoPE tables of one model."""

    def __init__(self, rotary: Untyped, dtype: torch.dtype, device: torch.device) -> None:
        """`rotary`: transformers' module, which rounds to the hidden states' `dtype`."""
        kinds = rotary.rope_type
        by_type = kinds if isinstance(kinds, dict) else {None: kinds}
        self._rotary = copy.deepcopy(rotary)  # its state changes with use, and training uses it
        self._kinds: dict[str | None, str] = by_type
        self._dtype, self._device = dtype, device
        self._tables: dict[tuple[str | None, int], RopeTable] = {}
        limits = [self._limit(name) for name in by_type]
        self.stable_length: int | None = min((n for n in limits if n is not None), default=None)
        """Length up to which frequencies do not depend on the length of the sequence; None if they
        never do. In longer sequences, the forward of the whole sequence uses other frequencies than
        those that earlier tokens were sampled with."""

    def rope_key(self, length: int) -> int:
        """Return the key of the RoPE frequencies of a sequence of `length` tokens."""
        if self.stable_length is None or length <= self.stable_length:
            return _STATIC
        dynamic = any("dynamic" in kind for kind in self._kinds.values())
        return length if dynamic else self.stable_length + 1

    def table(self, layer_type: str | None, rope_key: int, length: int) -> RopeTable:
        """Return a table of at least `length` positions, or of all positions that the key has."""
        key = (layer_type if layer_type in self._kinds else None, rope_key)
        length = min(length, self._max_positions(*key))
        table = self._tables.get(key)
        if table is None or len(table.cos) < length:
            if len(self._tables) > 64:  # dynamic: old keys are not used again
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
        """Return the number of positions of `rope_key`."""
        limit = self._limit(layer_type)
        if limit is None:
            return sys.maxsize
        if rope_key == _STATIC:
            return limit
        # The module of a dynamic model derives the length of the sequence from the positions.
        return rope_key if "dynamic" in self._kinds[layer_type] else sys.maxsize

    def _limit(self, layer_type: str | None) -> int | None:
        """Return the length up to which frequencies are fixed; None if they always are."""
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
    """Reset frequencies that the module cached for the sequences of earlier calls."""
    prefix = "" if layer_type is None else f"{layer_type}_"
    original = getattr(rotary, f"{prefix}original_inv_freq", None)
    if original is not None:
        setattr(rotary, f"{prefix}inv_freq", original.clone())
        setattr(rotary, f"{prefix}max_seq_len_cached", rotary.original_max_seq_len)

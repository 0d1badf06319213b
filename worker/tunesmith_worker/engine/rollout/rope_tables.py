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
"""The rope_key of sequences whose frequencies do not depend on their length."""
_BLOCK = 256


@dataclass(frozen=True)
class RopeTable:
    """Of positions 0 to P - 1, fp32."""

    cos: torch.Tensor
    """[P, R/2]"""
    sin: torch.Tensor
    doubled: torch.Tensor
    """[cos | cos] and [-sin | sin], [P, 2, R]: what rotates in few steps."""


class RopeTables:
    """Tables of one model."""

    def __init__(self, rotary: Untyped, dtype: torch.dtype, device: torch.device) -> None:
        """`rotary`: transformers' module; `dtype`: of the hidden states, to which it rounds."""
        kinds = rotary.rope_type
        by_type = kinds if isinstance(kinds, dict) else {None: kinds}
        self._rotary = copy.deepcopy(rotary)  # it changes as it is used, and training uses it
        self._kinds: dict[str | None, str] = by_type
        self._dtype, self._device = dtype, device
        self._tables: dict[tuple[str | None, int], RopeTable] = {}
        limits = [self._limit(name) for name in by_type]
        self.stable_length: int | None = min((n for n in limits if n is not None), default=None)
        """Sequences up to here have one law. Longer ones have another law with each length
        (dynamic), or from here on (longrope): a forward of a whole sequence then scores its
        tokens otherwise than they were drawn. None: there is no such length."""

    def rope_key(self, length: int) -> int:
        """Of a sequence of `length` tokens."""
        if self.stable_length is None or length <= self.stable_length:
            return _STATIC
        dynamic = any("dynamic" in kind for kind in self._kinds.values())
        return length if dynamic else self.stable_length + 1

    def table(self, layer_type: str | None, rope_key: int, length: int) -> RopeTable:
        """Of at least `length` positions, or of as many as the rope_key has."""
        key = (layer_type if layer_type in self._kinds else None, rope_key)
        length = min(length, self._max_positions(*key))
        found = self._tables.get(key)
        if found is None or len(found.cos) < length:
            if len(self._tables) > 64:  # dynamic: an rope_key is left for good
                self._tables.clear()
            found = self._tables[key] = self._compute_table(key[0], rope_key, length)
        return found

    def _compute_table(self, layer_type: str | None, rope_key: int, length: int) -> RopeTable:
        length = max(
            rope_key, min(-(-length // _BLOCK) * _BLOCK, self._max_positions(layer_type, rope_key))
        )
        rotary = copy.deepcopy(self._rotary)
        _reset_frequencies(rotary, layer_type)
        positions = torch.arange(length, device=self._device)[None]
        x = torch.empty(1, 0, dtype=self._dtype, device=self._device)
        given = () if layer_type is None else (layer_type,)
        cos, sin = rotary(x, positions, *given)
        half = cos.shape[-1] // 2
        cos, sin = (one[0, :, :half].float().contiguous() for one in (cos, sin))
        pairs = [torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)]
        return RopeTable(cos, sin, torch.stack(pairs, 1))

    def _max_positions(self, layer_type: str | None, rope_key: int) -> int:
        """RopeTables that `rope_key` has."""
        changes = self._limit(layer_type)
        if changes is None:
            return sys.maxsize
        if rope_key == _STATIC:
            return changes
        # The module of a dynamic model reads the sequence's length off the positions.
        return rope_key if "dynamic" in self._kinds[layer_type] else sys.maxsize

    def _limit(self, layer_type: str | None) -> int | None:
        """Beyond how many tokens frequencies change with the length."""
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
    """What a module with changing frequencies remembers of sequences it has seen."""
    prefix = "" if layer_type is None else f"{layer_type}_"
    original = getattr(rotary, f"{prefix}original_inv_freq", None)
    if original is not None:
        setattr(rotary, f"{prefix}inv_freq", original.clone())
        setattr(rotary, f"{prefix}max_seq_len_cached", rotary.original_max_seq_len)

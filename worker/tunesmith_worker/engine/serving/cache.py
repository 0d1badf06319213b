"""Caches of attention keys and values: a buffer per new prompt, a slot per generating request.

While a prompt is computed, its keys and values are in a buffer. Afterwards, the request generates
tokens, and its keys and values are in a slot.

Shapes: L layers, S slots, KV key/value heads, D head size, T tokens per slot. The B requests that
generate tokens (rows) occupy the first slots without gaps, so that one matrix product per layer
covers all rows without copying keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_STEP = 64
"""The number of tokens per slot is a multiple of `_STEP`."""


@dataclass(frozen=True)
class CacheShape:
    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def token_bytes(self) -> int:
        """Size in bytes of one token's keys and values."""
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


class PromptBuffer:
    """Keys and values of one sequence: [L, 2, KV, T, D]."""

    def __init__(self, shape: CacheShape, tokens: int) -> None:
        self.kv = torch.zeros(
            (shape.layers, 2, shape.kv_heads, round_up(tokens), shape.head_dim),
            dtype=shape.dtype,
            device=shape.device,
        )

    @property
    def bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()


class SlotCache:
    """Keys and values of all generating requests: [L, 2, S, KV, T, D]."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._kv = self._empty(0, 0)
        self.lengths: list[int] = []
        """Number of cached tokens of each request, in the order of the slots."""

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def bytes(self) -> int:
        return self._kv.numel() * self._kv.element_size()

    def bytes_for(self, rows: int, tokens: int) -> int:
        """Return the size in bytes of a cache for `rows` requests of at most `tokens` tokens
        each."""
        return max(rows, 0) * round_up(tokens) * self._shape.token_bytes

    def layer(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one layer's keys and values of all B requests as two views, each [B KV, T, D]. T:
        number of tokens of the longest request, including its new token."""
        longest = max(self.lengths) + 1
        keys, values = self._kv[number, :, : self.rows, :, :longest].unbind()
        return keys.flatten(0, 1), values.flatten(0, 1)

    def write_index(self) -> torch.Tensor:
        """Return the positions [B 2 KV] in `flat(layer)` to which the next keys and values of all
        B requests must be written."""
        _, _, slots, kv_heads, tokens, _ = self._kv.shape
        row = torch.arange(self.rows)[:, None] * kv_heads + torch.arange(kv_heads)
        within = row * tokens + torch.tensor(self.lengths)[:, None]
        both = torch.stack([within, within + slots * kv_heads * tokens], 1)
        return both.flatten().to(self._kv.device)

    def flat(self, number: int) -> torch.Tensor:
        """Return one layer as a view [2 S KV T, D]; `write_index` gives indices of its first
        dimension."""
        return self._kv[number].view(-1, self._shape.head_dim)

    def advance(self) -> None:
        """Increase each request's number of cached tokens by one."""
        self.lengths = [length + 1 for length in self.lengths]

    def append(self, buffer: PromptBuffer, length: int) -> None:
        """Add a request: copy the keys and values of its first `length` tokens from `buffer`."""
        slot = self.rows
        self.reserve(slot + 1, max([length, *self.lengths]) + 1)
        self._kv[:, :, slot, :, :length] = buffer.kv[..., :length, :]
        self.lengths.append(length)

    def remove(self, slot: int) -> None:
        """Free a slot; the request in the last used slot moves into the freed slot."""
        last = self.rows - 1
        if slot != last:
            length = self.lengths[last]
            self._kv[:, :, slot, :, :length] = self._kv[:, :, last, :, :length]
            self.lengths[slot] = length
        self.lengths.pop()
        if self.bytes_for(self.rows, self._longest() + 1) <= self.bytes // 4:
            self.trim()

    def clear(self, slot: int) -> None:
        """Set all entries of a slot to 0. A NaN in a free slot would damage later requests in this
        slot, because attention multiplies unused entries by 0, and 0 times NaN is NaN."""
        self._kv[:, :, slot] = 0

    def copy_of(self, slot: int, tokens: int) -> torch.Tensor:
        """Copy the keys and values of a slot's first `tokens` tokens: [L, 2, KV, tokens, D]."""
        return self._kv[:, :, slot, :, :tokens].clone()

    def reserve(self, rows: int, tokens: int) -> None:
        """Reserve space for `rows` requests; the longest request has `tokens` tokens."""
        slots, room = self._kv.shape[2], self._kv.shape[4]
        if rows > slots or tokens > room:
            self._resize(rows, tokens)

    def trim(self) -> None:
        """Free the slots that hold no request."""
        if self.bytes > self.bytes_for(self.rows, self._longest() + 1):
            self._resize(self.rows, self._longest() + 1)

    def _longest(self) -> int:
        return max(self.lengths, default=0)

    def _resize(self, slots: int, room: int) -> None:
        kv, longest = self._empty(slots, room), self._longest()
        if self.rows and longest:
            kv[:, :, : self.rows, :, :longest] = self._kv[:, :, : self.rows, :, :longest]
        self._kv = kv

    def _empty(self, slots: int, room: int) -> torch.Tensor:
        # Unused entries must be finite: attention multiplies them by 0, and 0 times NaN is NaN.
        s = self._shape
        size = (s.layers, 2, slots, s.kv_heads, round_up(room), s.head_dim)
        return torch.zeros(size, dtype=s.dtype, device=s.device)


def round_up(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP

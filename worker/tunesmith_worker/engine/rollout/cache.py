"""Key/value cache: stores each prompt once, and the completion of each row.

Rows with the same prompt are adjacent, so that one matrix product reads the prompt's keys for all
these rows. Shapes: L layers, KV key/value heads, D head size, B rows, P prompt tokens, space for T
completion tokens per row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

_STEP = 64
"""The space for completion tokens is a multiple of this number."""


@dataclass(eq=False)
class Prefix:
    """Cached keys and values of a prompt (or of the start of a sequence), shared by several
    rows."""

    length: int
    rope_key: int
    """Key that identifies the RoPE frequencies of the cached keys (rope_tables.py)."""
    keys: torch.Tensor
    """Keys of the prefix's tokens, [L, KV, P, D]; `values` has the same shape."""
    values: torch.Tensor
    logits: torch.Tensor
    """Logits after the prefix's last token: [V] fp32."""


class RowCache:
    """Keys and values of the completions in one batch."""

    def __init__(self, like: Prefix) -> None:
        """Create a cache without rows, with the sizes, dtype and device of the keys in `like`."""
        layers, kv_heads, _, head_dim = like.keys.shape
        self.spans: list[tuple[Prefix, int, int]] = []
        """For each prompt: the prompt, its first row, and the row after its last row."""
        self.shared: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        """Keys [KV, D, P] and values [KV, P, D] of each prompt, indexed by layer, then span."""
        self.lengths: list[int] = []
        """Number of cached completion tokens of each row."""
        self.prompt_lengths = torch.zeros(0, dtype=torch.long, device=like.keys.device)
        """Prompt length of each row: [B]."""
        self.version = 0
        """Counter that increases when the cache replaces its tensors, because the rows changed or
        because the cache grew."""
        self._kv = like.keys.new_zeros(layers, 2, kv_heads, 0, 0, head_dim)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def room(self) -> int:
        """Number of completion tokens that fit in the cache (T)."""
        return self._kv.shape[4]

    @property
    def bytes(self) -> int:
        """Size of the cache in bytes, including the prompts."""
        prompts = {id(p): p.keys.numel() * 2 * p.keys.element_size() for p, _, _ in self.spans}
        return self._kv.numel() * self._kv.element_size() + sum(prompts.values())

    def rebuild(self, kept: Sequence[int], prefixes: Sequence[Prefix], reserved: int = 0) -> None:
        """Replace the rows, with space for at least `reserved` completion tokens.

        `prefixes` contains the prompt of each new row; equal prompts are adjacent. `kept` contains
        each new row's old row number, or -1 if the row has no cached completion."""
        lengths = [0 if row < 0 else self.lengths[row] for row in kept]
        room = _room(max(max(lengths, default=0) + 1, reserved))
        layers, two, kv_heads, _, before, head_dim = self._kv.shape
        # Unused entries must be finite: attention multiplies them by 0, and 0 times NaN is NaN.
        kv = self._kv.new_zeros(layers, two, kv_heads, len(kept), room, head_dim)
        old = [new_row for new_row, row in enumerate(kept) if row >= 0]
        if old and before:
            most = min(before, max(lengths))
            index = torch.tensor([kept[new_row] for new_row in old], device=kv.device)
            copied = self._kv[..., :most, :].index_select(3, index)
            if len(old) == len(kept):
                kv[..., :most, :] = copied
            else:
                kv[:, :, :, torch.tensor(old, device=kv.device), :most] = copied
        self._kv, self.lengths = kv, lengths
        self.version += 1
        self.prompt_lengths = torch.tensor([prefix.length for prefix in prefixes], device=kv.device)
        self.spans = _spans(prefixes)
        self.shared = [
            [(p.keys[layer].transpose(1, 2), p.values[layer]) for p, _, _ in self.spans]
            for layer in range(layers)
        ]

    def make_room(self) -> None:
        """Grow the cache if it has no space for one more token per row."""
        needed, now = max(self.lengths, default=0) + 1, self.room
        if needed <= now:
            return
        # Growing by a quarter each time limits the total copied memory to a few times the cache.
        room = max(_room(needed), _room(now + now // 4))
        kv = self._kv.new_zeros(*self._kv.shape[:4], room, self._kv.shape[5])
        kv[..., :now, :] = self._kv
        self._kv = kv
        self.version += 1

    def lengths_tensor(self) -> torch.Tensor:
        """Return `lengths` as a tensor [B] on the device."""
        return torch.tensor(self.lengths, device=self._kv.device)

    def writer(
        self, lengths: torch.Tensor | None = None
    ) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Return a function that writes a layer's next keys and values [B, 2 KV, D].

        Without `lengths`, the function is valid for one step, until `advance` is called. With a
        tensor `lengths` [B], whose values may change between steps, the function is valid until
        the cache replaces its tensors."""
        _, two, kv_heads, rows, room, head_dim = self._kv.shape
        heads = two * kv_heads
        if lengths is None and len(set(self.lengths)) == 1:  # four times as fast
            column = self._kv.view(-1, heads, rows, room, head_dim)[:, :, :, self.lengths[0]]
            by_layer = column.transpose(1, 2).unbind()
            return lambda layer, new: by_layer[layer].copy_(new)
        lengths = self.lengths_tensor() if lengths is None else lengths
        within = torch.arange(rows, device=lengths.device) * room + lengths
        head = torch.arange(heads, device=lengths.device) * (rows * room)
        index = (within[:, None] + head).flatten()
        flat = self._kv.view(-1, heads * rows * room, head_dim).unbind()
        return lambda layer, new: flat[layer].index_copy_(0, index, new.reshape(-1, head_dim))

    def layer(self, number: int) -> torch.Tensor:
        """Return the keys and values [2, KV, B, T, D] of one layer, as a view."""
        return self._kv[number]

    def advance(self) -> None:
        """Increase each row's number of cached tokens by one."""
        self.lengths = [length + 1 for length in self.lengths]


def _room(tokens: int) -> int:
    return -(-tokens // _STEP) * _STEP


def _spans(prefixes: Sequence[Prefix]) -> list[tuple[Prefix, int, int]]:
    spans: list[tuple[Prefix, int, int]] = []
    for row, prefix in enumerate(prefixes):
        if spans and spans[-1][0] is prefix:
            spans[-1] = (prefix, spans[-1][1], row + 1)
        else:
            spans.append((prefix, row, row + 1))
    return spans

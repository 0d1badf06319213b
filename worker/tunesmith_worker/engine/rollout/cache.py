"""Keys and values: of each prompt once, and of what each row has drawn itself.

Rows of one prompt stand side by side, so that all of them read the prompt's keys in one product.
Shapes: L layers, KV key/value heads, D head size, B rows, P tokens of a prompt, T drawn tokens
there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

_STEP = 64
"""Room for drawn tokens grows by at least so many."""


@dataclass(eq=False)
class Prefix:
    """The part of a sequence that several rows share."""

    length: int
    rope_key: int
    """Of the RoPE frequencies in its keys: positions.py."""
    keys: torch.Tensor
    """[L, KV, P, D]"""
    values: torch.Tensor
    logits: torch.Tensor
    """[V] fp32, after its last token."""


class RowCache:
    """Of the rows of one batch: what they have drawn so far."""

    def __init__(self, like: Prefix) -> None:
        """Without rows. `like`: any prompt of the model."""
        layers, kv_heads, _, head_dim = like.keys.shape
        self.spans: list[tuple[Prefix, int, int]] = []
        """Each prompt with its first row and the one after its last."""
        self.shared: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        """By layer, for each of `spans`: the prompt's keys [KV, D, P] and values [KV, P, D]."""
        self.lengths: list[int] = []
        """Tokens of each row that are cached."""
        self.prompt_lengths = torch.zeros(0, dtype=torch.long, device=like.keys.device)
        """[B]"""
        self.version = 0
        """Another one whenever rows or room change, and with them the tensors."""
        self._kv = like.keys.new_zeros(layers, 2, kv_heads, 0, 0, head_dim)

    @property
    def rows(self) -> int:
        return len(self.lengths)

    @property
    def room(self) -> int:
        """T"""
        return self._kv.shape[4]

    @property
    def bytes(self) -> int:
        """Of rows and prompts."""
        prompts = {id(p): p.keys.numel() * 2 * p.keys.element_size() for p, _, _ in self.spans}
        return self._kv.numel() * self._kv.element_size() + sum(prompts.values())

    def rebuild(self, kept: Sequence[int], prefixes: Sequence[Prefix]) -> None:
        """Rows anew: `prefixes` has each new row's prompt, equal ones side by side; `kept` the row
        that it was until now, or -1 for one that has drawn nothing."""
        lengths = [0 if row < 0 else self.lengths[row] for row in kept]
        room = _room(max(lengths, default=0) + 1)
        layers, two, kv_heads, _, before, head_dim = self._kv.shape
        # Zeros, not whatever was there: a row's weight for what it has not drawn is 0, and 0 times
        # a NaN is none.
        kv = self._kv.new_zeros(layers, two, kv_heads, len(kept), room, head_dim)
        old = [place for place, row in enumerate(kept) if row >= 0]
        if old and before:
            most = min(before, max(lengths))
            index = torch.tensor([kept[place] for place in old], device=kv.device)
            taken = self._kv[..., :most, :].index_select(3, index)
            if len(old) == len(kept):
                kv[..., :most, :] = taken
            else:
                kv[:, :, :, torch.tensor(old, device=kv.device), :most] = taken
        self._kv, self.lengths = kv, lengths
        self.version += 1
        self.prompt_lengths = torch.tensor([one.length for one in prefixes], device=kv.device)
        self.spans = _spans(prefixes)
        self.shared = [
            [(one.keys[layer].transpose(1, 2), one.values[layer]) for one, _, _ in self.spans]
            for layer in range(layers)
        ]

    def make_room(self) -> None:
        """For one more token of every row."""
        needed, now = max(self.lengths, default=0) + 1, self.room
        if needed <= now:
            return
        # A quarter more each time: the copies add up to a few times the whole.
        room = max(_room(needed), _room(now + now // 4))
        kv = self._kv.new_zeros(*self._kv.shape[:4], room, self._kv.shape[5])
        kv[..., :now, :] = self._kv
        self._kv = kv
        self.version += 1

    def lengths_tensor(self) -> torch.Tensor:
        """[B]: `lengths`, on the device."""
        return torch.tensor(self.lengths, device=self._kv.device)

    def writer(
        self, lengths: torch.Tensor | None = None
    ) -> Callable[[int, torch.Tensor], torch.Tensor]:
        """Of each row's next keys and values: takes a layer's number and [B, 2 KV, D]. For all
        layers of a step, until `advance`; with `lengths` [B], which may change, for as long as the
        layout holds."""
        _, two, kv_heads, rows, room, head_dim = self._kv.shape
        heads = two * kv_heads
        if lengths is None and len(set(self.lengths)) == 1:  # one column: four times as fast
            column = self._kv.view(-1, heads, rows, room, head_dim)[:, :, :, self.lengths[0]]
            by_layer = column.transpose(1, 2).unbind()
            return lambda layer, new: by_layer[layer].copy_(new)
        lengths = self.lengths_tensor() if lengths is None else lengths
        within = torch.arange(rows, device=lengths.device) * room + lengths
        head = torch.arange(heads, device=lengths.device) * (rows * room)
        places = (within[:, None] + head).flatten()
        flat = self._kv.view(-1, heads * rows * room, head_dim).unbind()
        return lambda layer, new: flat[layer].index_copy_(0, places, new.reshape(-1, head_dim))

    def layer(self, number: int) -> torch.Tensor:
        """Keys and values [2, KV, B, T, D] of one layer, to be written to and read."""
        return self._kv[number]

    def advance(self) -> None:
        """Every row has cached one more token."""
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

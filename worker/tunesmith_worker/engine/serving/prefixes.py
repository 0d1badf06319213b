"""Attention keys and values of finished requests, kept for the next turn of a conversation.

A request reuses a kept sequence if both have the same adapter and cache salt, and the request's
prompt starts with the same tokens. Projects have different salts, so no project can guess another
project's prompts from the number of cached tokens. The least recently used sequences are dropped
first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .protocol import PrefixSpace

MIN_TOKENS = 8
"""Minimum length of a reused prefix in tokens. Shorter prefixes are computed again."""


@dataclass(eq=False)
class KeptPrefix:
    space: PrefixSpace
    rope_key: int
    tokens: np.ndarray[tuple[int], np.dtype[np.int64]]
    kv: torch.Tensor
    """Keys and values, [L, 2, KV, T, D]."""

    @property
    def bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()


class PrefixStore:
    def __init__(self, max_bytes: int, max_entries: int = 64) -> None:
        self.max_bytes, self._max_entries = max_bytes, max_entries
        self._kept: OrderedDict[int, KeptPrefix] = OrderedDict()
        """Kept sequences, least recently used first; the keys are `id(sequence)`."""

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in list(self._kept.values()))

    @property
    def tokens(self) -> int:
        return sum(len(one.tokens) for one in list(self._kept.values()))

    def fits(self, size: int) -> bool:
        """Return True if a sequence of `size` bytes may be kept."""
        return size <= self.max_bytes

    def make_room(
        self, space: PrefixSpace, rope_key: int, tokens: Sequence[int], size: int
    ) -> None:
        """Drop kept sequences until the new sequence `tokens` of `size` bytes fits: first all
        sequences that are a prefix of `tokens`, then the least recently used sequences."""
        new = np.array(tokens, dtype=np.int64)
        for key, old in list(self._kept.items()):
            same = old.space == space and old.rope_key == rope_key
            if same and common_length(old.tokens, new) == len(old.tokens):
                del self._kept[key]
        while len(self._kept) >= self._max_entries or self.bytes + size > self.max_bytes:
            if not self.drop_oldest():
                return

    def add(
        self, space: PrefixSpace, rope_key: int, tokens: Sequence[int], kv: torch.Tensor
    ) -> None:
        """Keep a sequence for which `make_room` has freed memory."""
        new = KeptPrefix(space, rope_key, np.array(tokens, dtype=np.int64), kv)
        self._kept[id(new)] = new

    def find(
        self, space: PrefixSpace, rope_key: int, tokens: Sequence[int]
    ) -> tuple[KeptPrefix, int] | None:
        """Return the kept sequence that has the longest common prefix with `tokens`, and the length
        of this prefix; None if the prefix is shorter than MIN_TOKENS. The last of `tokens` is never
        reused, because its logits must be computed."""
        wanted = np.array(tokens[:-1], dtype=np.int64)
        best, length = None, MIN_TOKENS - 1
        for one in self._kept.values():
            if one.space == space and one.rope_key == rope_key:
                common = common_length(one.tokens, wanted)
                if common > length:
                    best, length = one, common
        if best is None:
            return None
        self._kept.move_to_end(id(best))
        return best, length

    def drop_oldest(self) -> bool:
        """Drop the least recently used sequence; return False if there is none."""
        if not self._kept:
            return False
        self._kept.popitem(last=False)
        return True

    def forget(self, adapter: str | None) -> None:
        """Drop the kept sequences of one adapter."""
        self._kept = OrderedDict((k, v) for k, v in self._kept.items() if v.space[0] != adapter)


def common_length(
    a: np.ndarray[tuple[int], np.dtype[np.int64]], b: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> int:
    size = min(len(a), len(b))
    different = (a[:size] != b[:size]).nonzero()[0]
    return int(different[0]) if len(different) else size


def common_length_of(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of equal tokens at the start of two sequences."""
    return common_length(np.array(a, dtype=np.int64), np.array(b, dtype=np.int64))

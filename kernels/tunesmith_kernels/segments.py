"""Where the rows of a batch lie when they stand end to end in one sequence.

Built once per batch on the host and shared by attention, RoPE and the loss. A row sees itself and,
where it has one, its prefix: a range of an earlier row, wholly before its own tokens. Completions
of one prompt share it so. It never sees another token; positions, which are the caller's, begin at
0, after a prefix at its length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

__all__ = ["NO_PREFIX", "AttentionShape", "Prefixes", "Segment", "Segments"]

NO_PREFIX = (0, 0)
"""The range of a row that has no prefix."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A row that has tokens, and what it sees before them."""

    start: int
    stop: int
    """One after its last token."""
    prefix_start: int = 0
    prefix_stop: int = 0

    @property
    def prefix(self) -> int:
        """Tokens of the prefix."""
        return self.prefix_stop - self.prefix_start


@dataclass(frozen=True, slots=True)
class Prefixes:
    """What each of S rows sees before its own tokens, and the keys of all rows end to end: for
    row after row, those of its prefix and its own."""

    ranges: tuple[tuple[int, int], ...]
    """First token and the one after the last; `NO_PREFIX` for none."""
    keys: torch.Tensor
    """On the device, int64 [K]: each key's token."""
    cumulative: torch.Tensor
    """On the device, int32 [S + 1]: where each row's keys begin, and K."""
    longest: int
    """Keys of the row that has most."""

    @classmethod
    def of(cls, bounds: Sequence[int], ranges: Sequence[tuple[int, int]]) -> Prefixes:
        """On the host; see `to`. Raises ValueError for a range that is not an earlier row's."""
        rows = list(pairwise(bounds))
        if len(ranges) != len(rows):
            raise ValueError(f"{len(rows)} rows need as many prefixes, got {len(ranges)}")
        keys, lengths = [], []
        for number, ((start, stop), (first, after)) in enumerate(zip(rows, ranges, strict=True)):
            if (first, after) != NO_PREFIX and not _in_a_row(first, after, bounds[: number + 1]):
                raise ValueError(
                    f"the prefix of row {number} must be tokens of one row before it, "
                    f"got [{first}, {after}) before {start}"
                )
            parts = [(first, after), (start, stop)] if stop > start else []  # no query, no keys
            keys += [torch.arange(a, b) for a, b in parts]
            lengths.append(sum(b - a for a, b in parts))
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        tokens = torch.cat(keys) if keys else torch.empty(0, dtype=torch.int64)
        return cls(tuple(ranges), tokens, ends, max(lengths, default=0))

    def to(self, device: torch.device | str) -> Prefixes:
        return replace(self, keys=self.keys.to(device), cumulative=self.cumulative.to(device))


def _in_a_row(first: int, after: int, bounds: Sequence[int]) -> bool:
    row = bisect_right(bounds, first)  # ends there, if it is among the bounds
    return 0 <= first < after and row < len(bounds) and after <= bounds[row]


@dataclass(frozen=True, slots=True)
class Segments:
    bounds: tuple[int, ...]
    """0, the end of the first row, ..., T: one number more than there are rows."""
    cumulative: torch.Tensor
    """`bounds` on the device, int32 [S + 1]: what varlen attention kernels take."""
    prefixes: Prefixes | None = None
    """None: no row has one."""

    @classmethod
    def from_cumulative(cls, cumulative: torch.Tensor) -> Segments:
        """From cumulative lengths, int [S + 1]. Waits for the device: once a batch, not a layer."""
        bounds = tuple(cumulative.tolist())
        return cls(bounds, cumulative.to(torch.int32))

    @classmethod
    def from_lengths(
        cls,
        lengths: list[int],
        device: torch.device | None = None,
        prefixes: Sequence[tuple[int, int]] | None = None,
    ) -> Segments:
        """`prefixes`: one range for each row, `NO_PREFIX` for none."""
        bounds = (0, *accumulate(lengths))
        cumulative = torch.tensor(bounds, dtype=torch.int32, device=device)
        seen = None if prefixes is None else Prefixes.of(bounds, prefixes)
        return cls(bounds, cumulative, None if seen is None else seen.to(cumulative.device))

    @property
    def tokens(self) -> int:
        return self.bounds[-1]

    @property
    def longest(self) -> int:
        return max((b - a for a, b in pairwise(self.bounds)), default=0)

    def rows(self) -> list[tuple[int, int]]:
        """First token of each row and the one after its last; rows without tokens left out."""
        return [(start, stop) for start, stop in pairwise(self.bounds) if stop > start]

    def segments(self) -> list[Segment]:
        """The same rows, with their prefixes."""
        if self.prefixes is None:
            return [Segment(start, stop) for start, stop in self.rows()]
        rows = zip(pairwise(self.bounds), self.prefixes.ranges, strict=True)
        return [Segment(*row, *seen) for row, seen in rows if row[1] > row[0]]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Multiplies q . k."""
    window: int | None = None
    """How many keys a query sees, itself included; None: all before it."""
    softcap: float | None = None
    """Scores are bent to stay below it: softcap * tanh(s / softcap)."""

    @property
    def rotated(self) -> int:
        """Heads that RoPE turns: those of q and of k."""
        return self.heads + self.kv_heads

    @property
    def width(self) -> int:
        """Columns of a packed q | k | v."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

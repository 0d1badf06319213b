"""Rows of a batch that are concatenated into one sequence, and the shape of an attention layer.

Segments are built once per batch on the host, for use by attention, RoPE and the loss. A token
attends only to its own row and to the row's prefix. A prefix is a range of tokens of an earlier
row. For example, completions of the same prompt use the prompt as their prefix. The caller sets the
positions of the tokens. The positions of a row start at 0, or at the prefix's length if the row has
a prefix.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch

__all__ = ["NO_PREFIX", "AttentionShape", "Prefixes", "Segment", "Segments"]

NO_PREFIX = (0, 0)
"""Prefix range of a row without prefix."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A row with at least one token, and the tokens of an earlier row that precede it (its prefix).
    All fields are indices of tokens in the concatenated rows."""

    start: int
    stop: int
    """Index of the token after the row's last token."""
    prefix_start: int = 0
    prefix_stop: int = 0

    @property
    def prefix(self) -> int:
        """Number of tokens of the prefix."""
        return self.prefix_stop - self.prefix_start


@dataclass(frozen=True, slots=True)
class Prefixes:
    """Prefixes of S rows, and the concatenated keys of all rows.

    Each row has the keys of its prefix, followed by the keys of its own tokens."""

    ranges: tuple[tuple[int, int], ...]
    """Range of each row's prefix: index of its first token, and index after its last token."""
    keys: torch.Tensor
    """Token index of each key: int64 [K] on the device."""
    cumulative: torch.Tensor
    """Index of the first key of each row, then the number of keys K: int32 [S + 1] on the
    device."""
    longest: int
    """Largest number of keys of a row."""

    @classmethod
    def of(cls, bounds: Sequence[int], ranges: Sequence[tuple[int, int]]) -> Prefixes:
        """Build the prefixes on the host; `to` moves them to a device.

        Raises ValueError if a range is not inside a single earlier row."""
        rows = list(pairwise(bounds))
        if len(ranges) != len(rows):
            raise ValueError(f"{len(rows)} rows need {len(rows)} prefixes, got {len(ranges)}")
        keys, lengths = [], []
        for number, ((start, stop), (first, after)) in enumerate(zip(rows, ranges, strict=True)):
            if (first, after) != NO_PREFIX and not _in_a_row(first, after, bounds[: number + 1]):
                raise ValueError(
                    f"the prefix of row {number} must be tokens of a single earlier row, "
                    f"got [{first}, {after}) before {start}"
                )
            parts = [(first, after), (start, stop)] if stop > start else []  # else: no keys
            keys += [torch.arange(a, b) for a, b in parts]
            lengths.append(sum(b - a for a, b in parts))
        ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        tokens = torch.cat(keys) if keys else torch.empty(0, dtype=torch.int64)
        return cls(tuple(ranges), tokens, ends, max(lengths, default=0))

    def to(self, device: torch.device | str) -> Prefixes:
        return replace(self, keys=self.keys.to(device), cumulative=self.cumulative.to(device))


def _in_a_row(first: int, after: int, bounds: Sequence[int]) -> bool:
    row = bisect_right(bounds, first)  # index of the end of the row that has `first`
    return 0 <= first < after and row < len(bounds) and after <= bounds[row]


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows of a batch in one sequence of T tokens."""

    bounds: tuple[int, ...]
    """Index of the first token of each row, then the number of tokens T."""
    cumulative: torch.Tensor
    """`bounds` as int32 [S + 1] on the device, for the varlen attention kernels."""
    prefixes: Prefixes | None = None
    """Prefixes of the rows; None if no row has a prefix."""

    @classmethod
    def from_cumulative(cls, cumulative: torch.Tensor) -> Segments:
        """Build segments from cumulative row lengths, int [S + 1].

        The call waits for the device, so call it only once per batch."""
        bounds = tuple(cumulative.tolist())
        return cls(bounds, cumulative.to(torch.int32))

    @classmethod
    def from_lengths(
        cls,
        lengths: list[int],
        device: torch.device | None = None,
        prefixes: Sequence[tuple[int, int]] | None = None,
    ) -> Segments:
        """Build segments from row lengths. `prefixes`: one range per row; `NO_PREFIX` for a row
        without prefix."""
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
        """Return the range of each row that has tokens: first token, and index after the last
        token."""
        return [(start, stop) for start, stop in pairwise(self.bounds) if stop > start]

    def segments(self) -> list[Segment]:
        """Return a `Segment` for each row that has at least one token."""
        if self.prefixes is None:
            return [Segment(start, stop) for start, stop in self.rows()]
        rows = zip(pairwise(self.bounds), self.prefixes.ranges, strict=True)
        return [Segment(*row, *seen) for row, seen in rows if row[1] > row[0]]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads and score options of an attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor that multiplies q . k."""
    window: int | None = None
    """Number of keys that a query attends to, including its own key. None means that a query
    attends to all keys up to its own key."""
    softcap: float | None = None
    """Bound of the scores: softcap * tanh(s / softcap)."""

    @property
    def rotated(self) -> int:
        """Number of heads that RoPE rotates: all heads of q and k."""
        return self.heads + self.kv_heads

    @property
    def width(self) -> int:
        """Number of columns of a tensor that contains q, k and v."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

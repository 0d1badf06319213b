"""Where the rows of a batch lie when they stand end to end in one sequence.

Built once per batch on the host and shared by attention, RoPE and the loss. A row never sees
another one: positions restart at its first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

__all__ = ["Segments"]


@dataclass(frozen=True, slots=True)
class Segments:
    bounds: tuple[int, ...]
    """0, the end of the first row, ..., T: one number more than there are rows."""
    cumulative: torch.Tensor
    """`bounds` on the device, int32 [S + 1]: what varlen attention kernels take."""

    @classmethod
    def from_cumulative(cls, cumulative: torch.Tensor) -> Segments:
        """From cumulative lengths, int [S + 1]. Waits for the device: once a batch, not a layer."""
        bounds = tuple(cumulative.tolist())
        return cls(bounds, cumulative.to(torch.int32))

    @classmethod
    def from_lengths(cls, lengths: list[int], device: torch.device | None = None) -> Segments:
        ends = [0]
        for length in lengths:
            ends.append(ends[-1] + length)
        return cls(tuple(ends), torch.tensor(ends, dtype=torch.int32, device=device))

    @property
    def tokens(self) -> int:
        return self.bounds[-1]

    @property
    def longest(self) -> int:
        return max((b - a for a, b in self.rows()), default=0)

    def rows(self) -> list[tuple[int, int]]:
        """First token of each row and the one after its last; rows without tokens left out."""
        return [(start, stop) for start, stop in pairwise(self.bounds) if stop > start]

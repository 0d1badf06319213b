"""Counts, per layer, of what the memory plan does: planned modes, recomputes and offloads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tunesmith_schema import LayerMemory

Counter = Callable[[], list[int]]
"""A count for each layer, layer 0 first."""


@dataclass(frozen=True, kw_only=True)
class LayerCounters:
    """What the plan says of each layer, and who counts what became of it."""

    planned: list[Literal["keep", "recompute", "offload"]] | None = None
    recomputes: Counter | None = None
    offloads: Counter | None = None

    def read(self) -> LayerMemory:
        return LayerMemory(
            planned=self.planned,
            recomputes=self.recomputes and self.recomputes(),
            offloads=self.offloads and self.offloads(),
        )

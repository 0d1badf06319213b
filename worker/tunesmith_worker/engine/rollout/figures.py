"""What one rollout took: time by phase, tokens, memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

import torch


@dataclass
class PhaseTime:
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    """Of the whole process, other threads included."""


@dataclass
class RolloutFigures:
    """Of one call. Its phases sum to the whole."""

    sync: PhaseTime = field(default_factory=PhaseTime)
    """Taking over the weights and giving them back: merging, or folding in and out."""
    prefill: PhaseTime = field(default_factory=PhaseTime)
    decode: PhaseTime = field(default_factory=PhaseTime)
    """Steps, draws, and putting batches together."""
    callback: PhaseTime = field(default_factory=PhaseTime)
    """`on_completion`."""
    prefill_tokens: int = 0
    decode_steps: int = 0
    graph_steps: int = 0
    """Steps that were a CUDA graph's."""
    recording_error: str = ""
    """Why steps could not be recorded, where they were to be."""
    row_steps: int = 0
    """Rows computed, over all steps: those that had ended included."""
    generated_tokens: int = 0
    cache_bytes: int = 0
    """Keys and values, at the most."""
    fold_saved: int = 0
    """Weights whose bits had to be kept while the adapter was folded in."""


class PhaseClock:
    """As a context: every moment inside goes to one phase."""

    def __init__(self, first: PhaseTime, device: torch.device) -> None:
        """`device`: waited for at each change of phase, so that work goes to who asked for it."""
        self._phase, self._device = first, device

    def __enter__(self) -> Self:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._switch(self._phase)

    @contextmanager
    def during(self, phase: PhaseTime) -> Iterator[None]:
        before = self._switch(phase)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, phase: PhaseTime) -> PhaseTime:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        wall, cpu = time.perf_counter(), time.process_time()
        self._phase.wall_seconds += wall - self._wall
        self._phase.cpu_seconds += cpu - self._cpu
        before, self._phase = self._phase, phase
        self._wall, self._cpu = wall, cpu
        return before

"""Time per phase, token counts and memory of one rollout."""

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
    """CPU time of the whole process, including other threads."""


@dataclass
class RolloutFigures:
    """Figures of one `generate` call. The sum of the phase times is the duration of `generate`."""

    sync: PhaseTime = field(default_factory=PhaseTime)
    """Time to prepare and restore the weights: merging the adapter, or folding and unfolding it
    (fold.py)."""
    prefill: PhaseTime = field(default_factory=PhaseTime)
    decode: PhaseTime = field(default_factory=PhaseTime)
    """Time in decode steps, sampling and batch rebuilds."""
    callback: PhaseTime = field(default_factory=PhaseTime)
    """Time in the callback `on_completion`."""
    prefill_tokens: int = 0
    decode_steps: int = 0
    graph_steps: int = 0
    """Number of decode steps that replayed a CUDA graph."""
    recording_error: str = ""
    """Error that prevented recording decode steps as CUDA graphs; empty if none occurred."""
    row_steps: int = 0
    """Number of rows computed, summed over all decode steps, including completed rows."""
    generated_tokens: int = 0
    cache_bytes: int = 0
    """Peak size of the key/value cache in bytes."""
    fold_saved: int = 0
    """Number of weight elements whose bits were saved, because subtracting the adapter would not
    restore them exactly (fold.py)."""


class PhaseClock:
    """Context manager that measures the time in its `with` block and adds the time to the current
    phase."""

    def __init__(self, first: PhaseTime, device: torch.device) -> None:
        """`device` is synchronized at each phase change, so that the time of device work counts for
        the phase that launched the work."""
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

"""GPU time of each phase, measured with CUDA events.

The host reads an event only after the GPU has reached the event, so the host does not wait. Only
`finish`, at the end of training, waits for the GPU. While the GPU waits for the host, the time
counts for the phase that runs on the host.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from tunesmith_schema import COMPUTE, PhaseName
from tunesmith_worker.rundir.clock import Charge

ON_DEVICE = (*COMPUTE, PhaseName.SYNC, PhaseName.GENERATE, PhaseName.LOG_PROBS)
"""Phases of GPU work."""
Spans = list[tuple[str, float]]
"""Consecutive phases of work on the host, each with its duration in seconds."""


@dataclass(slots=True)
class _Segment:
    """GPU time between two events: the work of one phase, or the gap between two such phases."""

    start: torch.cuda.Event
    end: torch.cuda.Event
    phase: str | None = None
    """Phase of the GPU work, one of ON_DEVICE; None for a gap."""
    spans: Spans = field(default_factory=list)


class CudaTimeline:
    """A `Timeline` that measures the current CUDA stream."""

    def __init__(self, charge: Charge) -> None:
        self._book = charge
        self._pending: deque[_Segment] = deque()
        self._last: torch.cuda.Event | None = None
        self._spans: Spans = []
        self._booked = 0.0
        self._free: list[torch.cuda.Event] = []
        self.steps = self.waits = 0
        """Number of optimiser steps, and number of optimiser steps that ended with an idle GPU."""

    def switched(self, ended: str, seconds: float, begins: str) -> None:
        if ended in ON_DEVICE and self._last is not None:
            if ended == PhaseName.OPTIMIZER:
                self.steps += 1
                self.waits += self._last.query()
            self._close(_Segment(self._last, self._record(), ended))
        else:
            self._spans.append((ended, seconds))
            if begins in ON_DEVICE:
                self._begin_compute()
        self._drain()

    def finish(self, seconds: float) -> None:
        torch.cuda.synchronize()
        self._drain()
        # The remaining seconds are the host's time since the last GPU event.
        self._book_gap(self._spans, max(0.0, seconds - self._booked))
        self._spans = []

    def _begin_compute(self) -> None:
        event = self._record()
        if self._last is None:  # the GPU was idle until this event
            for phase, seconds in self._spans:
                self._charge(phase, seconds)
        else:
            self._pending.append(_Segment(self._last, event, None, self._spans))
        self._last, self._spans = event, []

    def _close(self, segment: _Segment) -> None:
        self._pending.append(segment)
        self._last = segment.end

    def _record(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _drain(self) -> None:
        while self._pending and self._pending[0].end.query():
            segment = self._pending.popleft()
            seconds = segment.start.elapsed_time(segment.end) / 1e3
            if segment.phase is None:
                self._book_gap(segment.spans, seconds)
            else:
                self._charge(segment.phase, seconds)
            self._free.append(segment.start)  # the end event is the start of the next segment

    def _book_gap(self, spans: Spans, seconds: float) -> None:
        for phase, span in reversed(spans):
            part = min(span, seconds)
            self._charge(phase, part)
            seconds -= part
        if seconds > 0:
            self._charge(PhaseName.OTHER, seconds)

    def _charge(self, phase: str, seconds: float) -> None:
        self._booked += seconds
        self._book(phase, seconds)

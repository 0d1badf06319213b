"""Decode steps as CUDA graphs: on a GPU a step's operations take less time than launching them.

A graph repeats the same kernels at the same addresses. So a recorded step reads on the device what
changes from one step to the next (the newest tokens, and how many each row has cached) and looks at
all of the cache's room, with a mask over what is not there yet. It holds for as long as the cache's
layout does; the first step of a layout runs as it is, which compiles what has to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from .architecture import Architecture
from .cache import RowCache
from .decoder import Decoder
from .figures import RolloutFigures
from .positions import Positions
from .weights import DecoderWeights

Run = Callable[[], torch.Tensor]
"""Device work alone, on tensors that stay where they are."""


class Recorder(Protocol):
    def run(self, run: Run) -> torch.Tensor:
        """Its result, where a recording of it would run."""

    def record(self, run: Run) -> Run:
        """What repeats `run`, whose result is always the same tensor. Raises RuntimeError where
        `run` does what cannot be recorded."""


class CudaRecorder:
    """By `torch.cuda.CUDAGraph`."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        # One pool: a graph's memory is the next one's.
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, run: Run) -> torch.Tensor:
        with self._aside():
            return run()

    def record(self, run: Run) -> Run:
        graph = torch.cuda.CUDAGraph()
        with self._aside():
            # Other threads of the trainer may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:
                graph.capture_end()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """On a stream of our own, as a recording must be."""
        usual = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(usual)
        with torch.cuda.stream(self._stream):
            yield
        usual.wait_stream(self._stream)


class RecordingDecoder(Decoder):
    """Whose steps are recordings."""

    def __init__(
        self,
        model: Architecture,
        weights: DecoderWeights,
        positions: Positions,
        recorder: Recorder,
        figures: RolloutFigures,
    ) -> None:
        super().__init__(model, weights, positions)
        self._recorder, self._figures = recorder, figures
        self._step: _Step | None = None

    def step(self, ids: torch.Tensor, cache: RowCache) -> torch.Tensor:
        """The tensor that it returns may be the next step's too."""
        if self._figures.refused_recording:
            return super().step(ids, cache)
        cache.make_room()
        if self._step is None or self._step.layout != cache.layout:
            self._step = None  # its memory before the next one's
            self._step = _Step(self, cache)
        elif self._step.replay is None:
            try:
                self._step.replay = self._recorder.record(self._step.run)
            except RuntimeError as reason:
                self._step, self._figures.refused_recording = None, str(reason) or "no reason"
                return super().step(ids, cache)
        return self._next(self._step, ids, cache)

    def release(self) -> None:
        """Its step holds the cache and refers back to it: memory that would wait for Python's
        collector."""
        self._step = None

    def _next(self, step: _Step, ids: torch.Tensor, cache: RowCache) -> torch.Tensor:
        step.ids.copy_(ids)
        if step.replay is None:
            logits = self._recorder.run(step.run)
        else:
            logits = step.replay()
            self._figures.recorded_steps += 1
        cache.advance()
        return logits


class _Step:
    """Of one layout: holds every tensor that a recording has the address of."""

    def __init__(self, decoder: Decoder, cache: RowCache) -> None:
        self.layout = cache.layout
        self.ids = torch.zeros_like(cache.prompt_lengths)
        self.replay: Run | None = None
        self._decoder, self._cache = decoder, cache
        self._lengths = cache.lengths_tensor()
        self._tables = decoder.row_tables(cache)

    def run(self) -> torch.Tensor:
        logits = self._decoder.newest(self.ids, self._cache, self._tables, self._lengths)
        self._lengths += 1
        return logits

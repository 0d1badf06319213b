"""Decode steps as CUDA graphs: on a GPU a step's operations take less time than launching them.

A graph repeats the same kernels at the same addresses. So a recorded step reads on the device what
changes from one step to the next (the newest tokens, and how many each row has cached) and looks at
all of the cache's room, with a mask over what is not there yet. It holds for as long as the cache's
layout does; the first step of a layout runs as it is, which compiles what has to be compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Protocol

import torch

from .architecture import Architecture
from .cache import RowCache
from .decoder import Decoder
from .figures import RolloutFigures
from .rope_tables import RopeTables
from .weights import DecoderWeights

StepFunction = Callable[[], torch.Tensor]
"""Device work alone, on tensors that stay where they are."""


class Recorder(Protocol):
    disabled_reason: str
    """Why nothing is to be recorded any more; empty: it may be tried."""

    def run(self, run: StepFunction) -> torch.Tensor:
        """Its result, where a recording of it would run."""

    def record(self, run: StepFunction) -> StepFunction:
        """What repeats `run`, whose result is always the same tensor. Raises what `run` raises,
        torch.OutOfMemoryError, and RuntimeError where `run` does what cannot be recorded."""


class CudaRecorder:
    """By `torch.cuda.CUDAGraph`; for all calls of a process."""

    def __init__(self, device: torch.device) -> None:
        # One for good: free memory and cuBLAS's workspace are kept by stream.
        self._stream = torch.cuda.Stream(device)
        self.disabled_reason = ""

    def run(self, run: StepFunction) -> torch.Tensor:
        with self._on_own_stream():
            return run()

    def record(self, run: StepFunction) -> StepFunction:
        # A graph cannot take what torch keeps for later. Nor can it have an earlier one's memory:
        # with its last graph a pool is gone for good. Both go back here.
        torch.cuda.synchronize(self._stream.device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with self._on_own_stream():
            # Other threads of the trainer may use the device meanwhile.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                result = run()
            except BaseException:
                # Which fails too, with less to say, where it was an operation that is not allowed.
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()

        def replay() -> torch.Tensor:
            graph.replay()
            return result

        return replay

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """On a stream of our own, as a recording must be."""
        usual = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(usual)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            usual.wait_stream(self._stream)


@cache
def recorder_for(device: torch.device) -> Recorder | None:
    """None: steps are not recorded there."""
    return CudaRecorder(device) if device.type == "cuda" else None


class RecordingDecoder(Decoder):
    """Whose steps are recordings."""

    def __init__(
        self,
        model: Architecture,
        weights: DecoderWeights,
        rope_tables: RopeTables,
        recorder: Recorder,
        figures: RolloutFigures,
    ) -> None:
        super().__init__(model, weights, rope_tables)
        self._recorder, self._figures = recorder, figures
        self._step: _Step | None = None
        figures.recording_error = recorder.disabled_reason

    def step(self, ids: torch.Tensor, cache: RowCache) -> torch.Tensor:
        """The tensor that it returns may be the next step's too."""
        if self._figures.recording_error:
            return super().step(ids, cache)
        cache.make_room()
        if self._step is None or self._step.cache_version != cache.version:
            # In this order. The graph's end frees what cuBLAS keeps for its stream: the first step
            # of the next layout makes that anew, outside of a recording.
            self._step = None
            self._step = _Step(self, cache)
        elif self._step.replay is None:
            self._record(self._step)
            if self._step.replay is None:
                self._step = None
                return super().step(ids, cache)
        return self._run_step(self._step, ids, cache)

    def release(self) -> None:
        """Its step holds the cache and refers back to it: memory that would wait for Python's
        collector."""
        self._step = None

    def _record(self, step: _Step) -> None:
        try:
            step.replay = self._recorder.record(step.run)
        except torch.OutOfMemoryError as error:  # another call may find more
            self._figures.recording_error = str(error)
        except RuntimeError as error:
            # Once for a process: torch does not recover all that a failed recording has taken.
            self._figures.recording_error = self._recorder.disabled_reason = str(error)

    def _run_step(self, step: _Step, ids: torch.Tensor, cache: RowCache) -> torch.Tensor:
        step.ids.copy_(ids)
        if step.replay is None:
            logits = self._recorder.run(step.run)
        else:
            logits = step.replay()
            self._figures.graph_steps += 1
        cache.advance()
        return logits


class _Step:
    """Of one layout. What a recording has the address of stays where it is until the layout or the
    call ends: here, in the cache or in the decoder's weights."""

    def __init__(self, decoder: Decoder, cache: RowCache) -> None:
        self.cache_version = cache.version
        self.ids = torch.zeros_like(cache.prompt_lengths)
        self.replay: StepFunction | None = None
        self._decoder, self._cache = decoder, cache
        self._lengths = cache.lengths_tensor()
        self._tables = decoder.row_tables(cache)

    def run(self) -> torch.Tensor:
        logits = self._decoder.device_step(self.ids, self._cache, self._tables, self._lengths)
        self._lengths += 1
        return logits

"""Run decode steps as CUDA graphs.

Without a CUDA graph, launching the kernels of a step takes longer than running them.

A CUDA graph repeats the same kernels at the same memory addresses. The newest tokens and the cached
lengths change between steps, so a recorded step reads these values from device tensors. A recorded
step reads the whole cache and masks unused entries. When the cache gets new tensors, its version
number changes, and the recording is no longer valid. The next step then runs without a recording,
to compile the kernels; the step after it is recorded.
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
"""Function that only launches device work, on tensors with fixed addresses."""


class Recorder(Protocol):
    disabled_reason: str
    """Reason why recording is disabled; empty if it is enabled."""

    def run(self, run: StepFunction) -> torch.Tensor:
        """Call `run` without recording, on the CUDA stream that recordings use, and return its
        result."""

    def record(self, run: StepFunction) -> StepFunction:
        """Record `run` and return a function that repeats it.

        The returned function writes its result to the same tensor in every call. Raises
        torch.OutOfMemoryError, exceptions of `run`, and RuntimeError if `run` cannot be
        recorded."""


class CudaRecorder:
    """Recorder based on torch.cuda.CUDAGraph. Each process has one recorder per device."""

    def __init__(self, device: torch.device) -> None:
        # All recordings use one stream, because torch's cached memory belongs to a stream.
        self._stream = torch.cuda.Stream(device)
        self.disabled_reason = ""

    def run(self, run: StepFunction) -> torch.Tensor:
        with self._on_own_stream():
            return run()

    def record(self, run: StepFunction) -> StepFunction:
        # Free torch's cached memory, because a new graph cannot use it.
        torch.cuda.synchronize(self._stream.device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with self._on_own_stream():
            # Other threads may use the device at the same time.
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                result = run()
            except BaseException:
                # After an error, capture_end raises another error that is less precise.
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
        default = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(default)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            default.wait_stream(self._stream)


@cache
def recorder_for(device: torch.device) -> Recorder | None:
    """Return the recorder of a CUDA device; None on other devices."""
    return CudaRecorder(device) if device.type == "cuda" else None


class RecordingDecoder(Decoder):
    """Decoder that replays recorded steps."""

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

    @property
    def reserves_room(self) -> bool:
        """True while steps are recorded as CUDA graphs. A graph is lost when the cache grows, so
        the cache is made large enough before the recording."""
        return not self._figures.recording_error

    def step(self, ids: torch.Tensor, cache: RowCache) -> torch.Tensor:
        """Run a decode step. The next step may overwrite the returned tensor."""
        if self._figures.recording_error:
            return super().step(ids, cache)
        cache.make_room()
        if self._step is None or self._step.cache_version != cache.version:
            # Free the old graph first, so that cuBLAS's workspace is freed and allocated again.
            self._step = None
            self._step = _Step(self, cache)
        elif self._step.replay is None:
            self._record(self._step)
            if self._step.replay is None:
                self._step = None
                return super().step(ids, cache)
        return self._run_step(self._step, ids, cache)

    def release(self) -> None:
        """Delete the recorded step, to free its memory without waiting for garbage collection.

        Garbage collection would free the memory late, because the recorded step and this object
        refer to each other."""
        self._step = None

    def _record(self, step: _Step) -> None:
        try:
            step.replay = self._recorder.record(step.run)
        except torch.OutOfMemoryError as error:  # a later `generate` call may have more memory
            self._figures.recording_error = str(error)
        except RuntimeError as error:
            # Do not retry in this process: torch does not free all memory of a failed recording.
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
    """Decode step that is valid until the cache replaces its tensors.

    This object holds the tensors that a recording uses, except the cache and the decoder's
    weights."""

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

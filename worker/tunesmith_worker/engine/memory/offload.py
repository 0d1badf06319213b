"""Offload the inputs of recomputed layers to pinned host memory between forward and backward.

On CUDA, copies to and from the host run on a separate stream. The forward pass does not wait for
these copies, because torch's allocator keeps the memory of a layer input until its copy ends. In
backward, the next layer input is fetched while the current layer recomputes, so at most two layer
inputs are on the device. On a CPU, which only tests use, the copies are synchronous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class OffloadCounter(Protocol):
    offloads: int


class InputOffload:
    """Stores the inputs of one model's offloaded layers and fetches them in reverse order."""

    def __init__(self, min_tokens: int) -> None:
        self._min_tokens = min_tokens
        self._stream: torch.cuda.Stream | None = None
        self._last: _OnHost | None = None

    @contextmanager
    def inputs(self, counts: OffloadCounter) -> Iterator[None]:
        """Within this block, offload the hidden states that activation checkpoints save."""

        def pack(x: torch.Tensor) -> torch.Tensor | _OnHost:
            if not x.is_floating_point() or x.dim() < 2 or x.shape[:-1].numel() < self._min_tokens:
                return x
            counts.offloads += 1
            previous = self._last
            if previous is not None and previous.fetched_once:
                previous = None  # the previous tensor belongs to a finished backward pass
            self._last = _OnHost(x, self._stream_for(x), previous)
            return self._last

        def unpack(packed: torch.Tensor | _OnHost) -> torch.Tensor:
            return packed if isinstance(packed, torch.Tensor) else packed.take()

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield

    def _stream_for(self, x: torch.Tensor) -> torch.cuda.Stream | None:
        if x.is_cuda and self._stream is None:
            self._stream = torch.cuda.Stream(x.device)
        return self._stream if x.is_cuda else None


class _OnHost:
    """A tensor on the host that can be copied back to the device."""

    def __init__(
        self, x: torch.Tensor, stream: torch.cuda.Stream | None, previous: _OnHost | None
    ) -> None:
        """`previous`: the tensor offloaded before this one, which backward needs next."""
        self._device, self._stream, self._previous = x.device, stream, previous
        self._back: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self.fetched_once = False
        x = x.detach()
        # torch's pinned allocator reuses a freed block only after all copies that use the block.
        self._host = torch.empty(x.shape, dtype=x.dtype, pin_memory=stream is not None)
        if stream is None:
            self._host.copy_(x)
            return
        stream.wait_stream(torch.cuda.current_stream(x.device))  # the current stream computes x
        with torch.cuda.stream(stream):
            self._host.copy_(x, non_blocking=True)
        x.record_stream(stream)  # keeps x's memory until the copy ends

    def fetch(self) -> None:
        if self._back is not None:
            return
        self.fetched_once = True
        if self._stream is None:
            self._back = self._host.clone()
            return
        main = torch.cuda.current_stream(self._device)
        # Allocate on the main stream, because work queued there may still use this memory.
        self._back = torch.empty(self._host.shape, dtype=self._host.dtype, device=self._device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            self._back.copy_(self._host, non_blocking=True)
        self._back.record_stream(self._stream)  # the tensor may be freed before `take` is called
        self._event = self._stream.record_event()

    def take(self) -> torch.Tensor:
        self.fetch()
        back, self._back = self._back, None
        assert back is not None
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        if self._previous is not None:
            self._previous.fetch()
            self._previous = None
        return back

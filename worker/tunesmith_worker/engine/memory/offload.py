"""A recomputed layer's input in pinned host memory between forward and backward.

On CUDA both copies run on a stream of their own. Forward waits for nothing: the input's memory is
handed back to the allocator only once its copy is done. In backward a layer's input is fetched
while the layer after it recomputes, so that at most two of them are on the device. On a CPU there
is no other memory: the logic runs with plain copies, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

MIN_OFFLOADED_TOKENS = 512
"""Below it a GPU waits for its host anyway, and a copy costs more than it saves."""


class Counts(Protocol):
    offloads: int


class InputOffload:
    """The inputs of one model's offloaded layers, last in, first out."""

    def __init__(self, least_tokens: int) -> None:
        self._least_tokens = least_tokens
        self._stream: torch.cuda.Stream | None = None
        self._last: _OnHost | None = None

    @contextmanager
    def inputs(self, counts: Counts) -> Iterator[None]:
        """What a checkpoint in here saves, its hidden states, goes to the host."""

        def pack(x: torch.Tensor) -> torch.Tensor | _OnHost:
            if (
                not x.is_floating_point()
                or x.dim() < 2
                or x.shape[:-1].numel() < self._least_tokens
            ):
                return x
            counts.offloads += 1
            before = self._last
            if before is not None and before.fetched_once:
                before = None  # of a backward that is over
            self._last = _OnHost(x, self._on(x), before)
            return self._last

        def unpack(packed: torch.Tensor | _OnHost) -> torch.Tensor:
            return packed if isinstance(packed, torch.Tensor) else packed.take()

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            yield

    def _on(self, x: torch.Tensor) -> torch.cuda.Stream | None:
        if x.is_cuda and self._stream is None:
            self._stream = torch.cuda.Stream(x.device)
        return self._stream if x.is_cuda else None


class _OnHost:
    """One tensor on the host, and for a while on the device again."""

    def __init__(
        self, x: torch.Tensor, stream: torch.cuda.Stream | None, before: _OnHost | None
    ) -> None:
        """`before`: what was offloaded just before, and is wanted just after."""
        self._device, self._stream, self._before = x.device, stream, before
        self._back: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None
        self.fetched_once = False
        x = x.detach()
        # torch's allocator of pinned memory rounds up to powers of two, keeps what is freed, and
        # gives a block out again only when the copies that use it are done.
        self._host = torch.empty(x.shape, dtype=x.dtype, pin_memory=stream is not None)
        if stream is None:
            self._host.copy_(x)
            return
        stream.wait_stream(torch.cuda.current_stream(x.device))  # what computes x is queued there
        with torch.cuda.stream(stream):
            self._host.copy_(x, non_blocking=True)
        x.record_stream(stream)  # x's memory is not given out again before the copy is done

    def fetch(self) -> None:
        """Begin the copy back."""
        if self._back is not None:
            return
        self.fetched_once = True
        if self._stream is None:
            self._back = self._host.clone()
            return
        main = torch.cuda.current_stream(self._device)
        # Of the main stream's memory: what was queued there before may still be using it.
        self._back = torch.empty(self._host.shape, dtype=self._host.dtype, device=self._device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            self._back.copy_(self._host, non_blocking=True)
        self._back.record_stream(self._stream)  # it may be dropped without ever being taken
        self._event = self._stream.record_event()

    def take(self) -> torch.Tensor:
        """The tensor, on the device; the one that is wanted next is on its way."""
        self.fetch()
        back, self._back = self._back, None
        assert back is not None
        if self._event is not None:
            torch.cuda.current_stream(self._device).wait_event(self._event)
        if self._before is not None:
            self._before.fetch()
            self._before = None
        return back

"""Fake of the parts of torch.cuda that a CUDA graph recording needs. Runs on a CPU.

It follows these rules of torch:

- A memory pool is gone when no graph uses it. A capture into it fails (torch's allocator asserts
  use_count > 0).
- A capture needs a stream other than the default one. Cached memory cannot be freed during it.
- If an operation fails during a capture, the end of the capture fails as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from .tape import Recording

Untyped = Any  # Any: handed on


class FakeCuda:
    def __init__(self) -> None:
        self.users: dict[object, int] = {}
        """Number of graphs in each pool."""
        self.usual = self.current = Stream()
        self.capturing = self.failing = False
        self.emptied = 0
        self.streams = 0

    def put_in(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(torch.cuda, "CUDAGraph", lambda: Graph(self))
        patch.setattr(torch.cuda, "Stream", self.new_stream)
        patch.setattr(torch.cuda, "current_stream", lambda device: self.current)
        patch.setattr(torch.cuda, "stream", self.stream)
        patch.setattr(torch.cuda, "synchronize", lambda device: self.not_captured())
        patch.setattr(torch.cuda, "empty_cache", self.empty_cache)

    def new_stream(self, device: torch.device) -> Stream:
        self.streams += 1
        return Stream()

    @contextmanager
    def stream(self, one: Stream) -> Iterator[None]:
        before, self.current = self.current, one
        try:
            yield
        finally:
            self.current = before

    def not_captured(self) -> None:
        assert not self.capturing, "not permitted while a stream is captured"

    def empty_cache(self) -> None:
        self.not_captured()
        self.emptied += 1


class Stream:
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.waited_for: list[Stream] = []

    def wait_stream(self, other: Stream) -> None:
        self.waited_for.append(other)


class Graph:
    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self._pool: object = None

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        assert self._cuda.current is not self._cuda.usual
        assert capture_error_mode == "thread_local"
        if pool is not None and not self._cuda.users.get(pool, 1):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self._pool = object() if pool is None else pool
        self._cuda.users[self._pool] = self._cuda.users.get(self._pool, 0) + 1
        self._cuda.capturing = True
        self._recording = Recording()
        self._recording.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def capture_end(self) -> None:
        self._recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._recording.undo()
        self._cuda.capturing = False
        if self._cuda.failing:
            raise RuntimeError("capture failed due to a previous error")

    def replay(self) -> None:
        assert self._cuda.current is self._cuda.usual
        self._recording.replay()

    def __del__(self) -> None:
        if self._pool is not None:
            self._cuda.users[self._pool] -= 1

"""Events of streams are passed on whole, however the inference server ends its lines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tunesmith_server.api.chat import whole_events


class Pieces:
    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def passed_on(*pieces: bytes) -> list[bytes]:
    async def collect() -> list[bytes]:
        response: Any = Pieces(*pieces)
        return [events async for events in whole_events(response)]

    return asyncio.run(collect())


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_an_event_waits_for_its_end(end: bytes) -> None:
    first, second = b"data: 1" + end, b"data: 2" + end
    assert passed_on(first + b"data:", b" 2" + end[:1], end[1:]) == [first, second]
    assert passed_on(first + second) == [first + second]


def test_a_last_event_without_an_end_gets_one() -> None:
    assert passed_on(b"data: 1\n\ndata: [DONE]\n") == [b"data: 1\n\n", b"data: [DONE]\n\n\n"]


def test_an_event_of_many_pieces_is_searched_once() -> None:
    """The event with the log-probs of a long echoed prompt must not occupy the event loop."""
    piece = b"\n" + b"x" * 16383
    began = time.thread_time()
    assert passed_on(*[piece] * 1000, b"\n\n") == [piece * 1000 + b"\n\n"]
    assert time.thread_time() - began < 1.0

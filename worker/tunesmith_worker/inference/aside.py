"""Calls in a thread, for work that would block the event loop for several milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LEAST = 16 * 1024
"""Input size, in characters or bytes, from which the work takes longer than a thread switch."""


async def aside(size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `function`. If the input is long (`size` characters), call `function` in a thread."""
    if size < _LEAST:
        return function(*args, **options)
    return await asyncio.to_thread(function, *args, **options)

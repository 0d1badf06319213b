"""Calls in a thread, for work that would block the event loop for several milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LEAST = 16 * 1024
"""Minimum input size for a thread, in characters or bytes; below this size, a switch to a thread
takes longer than the work."""


async def aside(size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `function`, in a thread if its input is long. `size`: length of the input."""
    if size < _LEAST:
        return function(*args, **options)
    return await asyncio.to_thread(function, *args, **options)

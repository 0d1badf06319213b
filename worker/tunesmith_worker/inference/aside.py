"""Work that would stop the event loop for longer than some milliseconds runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LEAST = 16 * 1024
"""From this many characters or bytes on, the work takes longer than a change of threads."""


async def aside(size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `function`. If its input is long (`size` characters), call it in a thread."""
    if size < _LEAST:
        return function(*args, **options)
    return await asyncio.to_thread(function, *args, **options)

"""Work that would stop the event loop for longer than some milliseconds runs in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LEAST = 16 * 1024
"""Characters, or bytes, whose work takes longer than the change of threads."""


async def aside(size: int, function: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Call `function`; in a thread if its work on `size` characters takes long."""
    if size < _LEAST:
        return function(*args, **options)
    return await asyncio.to_thread(function, *args, **options)

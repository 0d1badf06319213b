"""Planes: separate thread pools, so that workers, users and bulk transfers never wait for each
other.

Starlette's own calls in threads, for spooled uploads and pieces of downloads, use anyio's default
pool. anyio's default pool also serves bulk transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")


class Plane(Enum):
    """A thread pool.

    A pool has few threads. Python executes only one thread at a time, so more threads are not
    faster, and each waiting thread delays the event loop.
    """

    WORKERS = "claims, heartbeats and reports of workers"
    USERS = "requests with an API key"
    BULK = "contents of files and adapters"
    ASSEMBLY = "completion of uploads"
    STREAMS = "reads for event streams"
    CHAT = "lookups of keys and models for chat requests; files for the inference server"
    HEALTH = "/readyz"


THREADS = {
    Plane.WORKERS: 8,
    Plane.USERS: 8,
    Plane.BULK: 6,
    Plane.ASSEMBLY: 2,
    Plane.STREAMS: 2,
    Plane.CHAT: 4,
    Plane.HEALTH: 2,
}
DATABASE_CONNECTIONS = sum(THREADS.values()) + 4
"""Maximum number of database connections of one process. Each thread has its own connection, so
that no plane waits for another plane. Of the four further connections, the janitor uses one.
`QueueView` uses one, because the thread that computes the view keeps the connection of its request.
The other two are a reserve.
"""

_limiters: RunVar[dict[Plane, CapacityLimiter]] = RunVar("tunesmith_planes")


async def run_in(plane: Plane, function: Callable[[], T]) -> T:
    """Call `function` in a thread of `plane`. A cancelled caller waits until the call ends."""
    return await to_thread.run_sync(function, limiter=limiters()[plane])


def limiters() -> dict[Plane, CapacityLimiter]:
    """Return the pools of the running event loop; the first call creates them."""
    try:
        return _limiters.get()
    except LookupError:
        pools = {plane: CapacityLimiter(count) for plane, count in THREADS.items()}
        pools[Plane.BULK] = to_thread.current_default_thread_limiter()
        pools[Plane.BULK].total_tokens = THREADS[Plane.BULK]
        _limiters.set(pools)
        return pools

"""Watchers of one job over server-sent events (SSE), in a separate process.

Each watcher checks the number of every event.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import time
from dataclasses import dataclass, field

import uvloop

from .connections import Connection, Target
from .load import spread

CONNECTED_AT_ONCE = 50
GIVE_UP_SECONDS = 300.0
SENT = "sent"
"""Key of the sending time in an event's data. The key's value is the Unix time at which the
benchmark sent the event to the API."""


@dataclass
class Seen:
    """Counts of the events that one watcher received."""

    last: int = 0
    lost: int = 0
    repeated: int = 0
    connections: int = 0
    done: bool = False
    latencies: list[float] = field(default_factory=list)

    def take(self, number: int) -> None:
        """Count a received event. Events should have the numbers 1, 2, 3, ...; a missing number
        counts as lost, and a smaller number counts as repeated."""
        if number <= self.last:
            self.repeated += 1
            return
        self.lost += number - self.last - 1
        self.last = number


def watch(
    target: Target, job_id: str, watchers: int, reconnecting: int, leave_after: int
) -> dict[str, float]:
    """Run until all `watchers` have received the event that ends the job.

    The first `reconnecting` watchers reconnect once. Watcher n closes its connection after event
    `leave_after` + n. The next request of watcher n has the number of this event in the header
    Last-Event-ID.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    gc.freeze()
    path = f"/v1/fine_tuning/jobs/{job_id}/events?stream=true"
    return uvloop.run(_watch_all(target, path, watchers, reconnecting, leave_after))


async def _watch_all(
    target: Target, path: str, watchers: int, reconnecting: int, leave_after: int
) -> dict[str, float]:
    gate = asyncio.Semaphore(CONNECTED_AT_ONCE)
    leave = [leave_after + n if n < reconnecting else None for n in range(watchers)]
    async with asyncio.timeout(GIVE_UP_SECONDS):
        seen = await asyncio.gather(*(_watch_one(target, path, gate, at) for at in leave))
    last = max(watcher.last for watcher in seen)
    latencies = [latency for watcher in seen for latency in watcher.latencies]
    return {
        "watchers": watchers,
        "reconnected": sum(watcher.connections > 1 for watcher in seen),
        "events": last,
        "delivered": sum(watcher.last - watcher.lost for watcher in seen),
        "lost": sum(watcher.lost + last - watcher.last for watcher in seen),
        "repeated_or_out_of_order": sum(watcher.repeated for watcher in seen),
        "without_done": sum(not watcher.done for watcher in seen),
        **{f"delivery_{name}_ms": value for name, value in spread(latencies).items()},
    }


async def _watch_one(
    target: Target, path: str, gate: asyncio.Semaphore, leave_at: int | None
) -> Seen:
    seen = Seen()
    while not seen.done:
        connection = Connection(target)
        async with gate:
            await connection.open()
        seen.connections += 1
        resume = seen.last or None
        async for number, data in connection.events(path, resume):
            if number == 0:
                seen.done = True
                break
            seen.take(number)
            if SENT in data["data"]:
                seen.latencies.append(time.time() - data["data"][SENT])
            if leave_at is not None and seen.last >= leave_at:
                leave_at = None
                break
        connection.close()
    return seen

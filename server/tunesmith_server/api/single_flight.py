"""Single flight: equal requests at the same time share one execution of slow work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class _Flight(Generic[T]):
    request: str
    task: asyncio.Task[T]


class SingleFlight(Generic[T]):
    """Executor of one piece of work per subject at a time, in one process.

    The work continues if its callers disconnect, so that a client's retry finds the result.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    async def run(self, subject: str, request: str, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, or of the same `request` about `subject` that is in
        progress. A different request about the same subject waits until the work in progress has
        ended."""
        while flight := self._flights.get(subject):
            if flight.request == request:
                return await asyncio.shield(flight.task)
            await asyncio.wait([flight.task])

        async def fly() -> T:
            try:
                return await work()
            finally:
                del self._flights[subject]

        task = asyncio.create_task(fly())
        self._flights[subject] = _Flight(request, task)
        task.add_done_callback(_retrieve_error)
        return await asyncio.shield(task)


def _retrieve_error(task: asyncio.Task[T]) -> None:
    """Mark the error as seen, so that asyncio does not log the error if no caller waits."""
    if not task.cancelled():
        task.exception()

"""Shared execution of slow functions: equal requests at the same time get the result of one
execution."""

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
    """Runner of slow functions in one process. Each function works on a subject, given by its id,
    for example an upload. For each subject, at most one function runs at a time. The function
    continues if its callers disconnect, so that a client's retry finds the result.
    """

    def __init__(self) -> None:
        self._flights: dict[str, _Flight[T]] = {}

    async def run(self, subject: str, request: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run the function `work` and return its result. If a function for the same subject and the
        same request is already running, wait for its result instead. If a function for another
        request of the same subject is running, first wait for its end.
        """
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

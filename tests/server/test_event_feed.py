"""Event hub: events are read once for all watchers, and slow watchers miss none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_schema import Event
from tunesmith_server.api import stream
from tunesmith_server.api.stream import EventHub
from tunesmith_server.models import DEFAULT_PROJECT, ApiKeyRow
from tunesmith_server.services.training import events

from .actors import Server
from .callers import event

WATCHERS = 20


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TAIL_SECONDS", 0.01)


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


@pytest.fixture
def told(server: Server, claim: dict[str, Any]) -> int:
    """Number of the job's events so far."""
    return len(server.messages(claim["job_id"]))


def with_hub(server: Server, act: Callable[[EventHub], Awaitable[None]]) -> None:
    async def run() -> None:
        hub = EventHub(server.database)
        tail = asyncio.create_task(hub.run())
        try:
            async with asyncio.timeout(20):
                await act(hub)
        finally:
            tail.cancel()

    asyncio.run(run())


async def numbers(stream_of_one: AsyncIterator[bytes], last: int) -> list[int]:
    """Numbers of the received events up to `last`."""
    found: list[int] = []
    while not found or found[-1] < last:
        chunk = await anext(stream_of_one)
        found += [int(line[3:]) for line in chunk.splitlines() if line.startswith(b"id:")]
    return found


def use_of(server: Server) -> tuple[str, str]:
    """Return the ids of the API key of `server.user` and of its project."""
    with server.database.read() as session:
        return session.scalars(select(ApiKeyRow.id)).one(), DEFAULT_PROJECT


async def report(server: Server, claim: dict[str, Any], first: int, last: int) -> None:
    batch = [event(number) for number in range(first, last + 1)]
    await asyncio.to_thread(server.worker.report, claim, events=batch)


def test_news_is_read_once_however_many_watch(
    server: Server, claim: dict[str, Any], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, since = [], events.since

    def counted(*given: Any) -> Iterator[Event]:  # Any: passed on
        reads.append(given)
        return since(*given)

    monkeypatch.setattr(events, "since", counted)

    async def act(hub: EventHub) -> None:
        watching = [hub.sse(use_of(server), claim["job_id"], 0) for _ in range(WATCHERS)]
        for one in watching:
            assert await numbers(one, told) == list(range(1, told + 1))
        backlog = len(reads)
        for round_ in range(3):
            coming = [asyncio.create_task(numbers(one, told + round_ + 1)) for one in watching]
            await report(server, claim, round_ + 1, round_ + 1)
            assert await asyncio.gather(*coming) == [[told + round_ + 1]] * WATCHERS
        assert backlog <= WATCHERS
        assert len(reads) - backlog <= 3 + 1, "one more if a round met a report half way"

    with_hub(server, act)


def test_who_falls_behind_what_the_feed_keeps_gets_it_all_the_same(
    server: Server, claim: dict[str, Any], told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_FEED_BYTES", 600)

    async def act(hub: EventHub) -> None:
        slow, quick = (
            hub.sse(use_of(server), claim["job_id"], 0),
            hub.sse(use_of(server), claim["job_id"], 0),
        )
        await numbers(slow, told)
        await numbers(quick, told)
        for number in range(1, 31):
            await report(server, claim, number, number)
            assert await numbers(quick, told + number) == [told + number]
        assert await numbers(slow, told + 30) == list(range(told + 1, told + 31))

    with_hub(server, act)


def test_a_watcher_that_names_an_event_of_the_future_hides_none_from_others(
    server: Server, claim: dict[str, Any], told: int
) -> None:
    async def act(hub: EventHub) -> None:
        strange, plain = (
            hub.sse(use_of(server), claim["job_id"], 999),
            hub.sse(use_of(server), claim["job_id"], 0),
        )
        waiting = asyncio.ensure_future(anext(strange))
        await asyncio.sleep(0.2)
        await numbers(plain, told)
        await report(server, claim, 1, 3)
        assert await numbers(plain, told + 3) == [told + 1, told + 2, told + 3]
        waiting.cancel()

    with_hub(server, act)


def test_a_job_that_nobody_watches_is_not_followed(
    server: Server, claim: dict[str, Any], told: int
) -> None:
    async def act(hub: EventHub) -> None:
        watching = hub.sse(use_of(server), claim["job_id"], 0)
        await numbers(watching, told)
        assert set(hub._feeds) == {claim["job_id"]}
        await watching.aclose()  # type: ignore[attr-defined]  # a generator, typed as an iterator
        assert hub._feeds == {}

    with_hub(server, act)

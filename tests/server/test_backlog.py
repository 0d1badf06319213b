"""Watchers read a job's events in pieces of bounded size, however large the events are."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import pytest
from sqlalchemy import insert, update

from tunesmith_schema.run import MAX_EVENT_BYTES
from tunesmith_server.api import stream
from tunesmith_server.api.stream import EventHub
from tunesmith_server.models import EventRow, JobRow

from .actors import Server

T = TypeVar("T")
LARGE_EVENTS = 300
PIECE = 64 * 1024 + 2 * MAX_EVENT_BYTES
"""Most bytes that a watcher gets at a time: the bound, and one event beyond it."""


@pytest.fixture
def job_id(server: Server) -> str:
    """Id of a job with LARGE_EVENTS events after its own."""
    job_id = server.create_job(server.good_file())
    with server.database.write.begin() as session:
        last = session.get_one(JobRow, job_id).last_seq
        rows = [
            {"job_id": job_id, "seq": last + n, "created_at": 1.0, "attempt": 1, "kind": "message",
             "level": "info", "message": "m", "data": {"a": "x" * (MAX_EVENT_BYTES - 100)}}
            for n in range(1, LARGE_EVENTS + 1)
        ]  # fmt: skip
        session.execute(insert(EventRow), rows)
        session.execute(update(JobRow).values(last_seq=last + LARGE_EVENTS))
    return job_id


def peak_of(act: Callable[[], T]) -> tuple[T, int]:
    """Return the result of `act` and the largest number of bytes that it kept at a time."""
    tracemalloc.start()
    try:
        return act(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_backlog_is_read_only_as_far_as_it_is_sent(server: Server, job_id: str) -> None:
    hub = EventHub(server.database)
    hub._read(job_id, 0)  # SQLAlchemy compiles the query
    backlog, peak = peak_of(lambda: hub._read(job_id, 0))
    assert backlog.lines is not None
    assert len(backlog.lines[1]) <= PIECE
    assert backlog.more
    assert peak < 5_000_000


def test_news_of_one_round_has_a_bound(server: Server, job_id: str) -> None:
    hub = EventHub(server.database)
    hub._news({job_id: LARGE_EVENTS})
    [news], peak = peak_of(lambda: hub._news({job_id: 1}))
    assert sum(len(line) for _, line in news.lines) < 1_500_000
    assert peak < 6_000_000


def test_an_ended_job_is_done_only_after_its_last_event(server: Server, job_id: str) -> None:
    server.ask(job_id, "cancel")
    hub = EventHub(server.database)
    [news] = hub._news({job_id: 1})
    assert news.done is None
    [last] = hub._news({job_id: LARGE_EVENTS})
    assert last.done is not None
    assert last.lines


def test_a_slow_watcher_gets_a_feed_in_pieces() -> None:
    feed = stream.Feed()
    feed.start(0)
    lines = [b"%d\n" % n * 2000 for n in range(1, 101)]
    for seq, line in enumerate(lines, 1):
        feed.add(seq, line)
    seq, pieces = 0, []
    while piece := feed.after(seq):
        seq = piece[0]
        pieces.append(piece[1])
    whole = (line + b"id: %d\n\n" % seq for seq, line in enumerate(lines, 1))
    assert b"".join(pieces) == b"".join(whole)
    assert max(map(len, pieces)) <= PIECE
    assert len(pieces) > 5

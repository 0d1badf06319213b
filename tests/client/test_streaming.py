"""Following a job's events across broken connections."""

from __future__ import annotations

import httpx
import pytest

from tunesmith import APIConnectionError, NotFoundError

from .fakes import Breaking, Clock, Script, client_of, job, refusal, sse

OVER = job("succeeded")


def seqs(script: Script, clock: Clock | None = None, after: int | None = None) -> list[int]:
    client = client_of(script, clock)
    return [event.seq for event in client.fine_tuning.jobs.stream("ftjob-1", after)]


def test_events_come_in_order_until_the_job_is_over() -> None:
    script = Script(httpx.Response(200, content=b": ping\n\n" + sse(1, 2, 3, done=OVER)))
    assert seqs(script) == [1, 2, 3]
    request = script.requests[0]
    assert request.url.params["stream"] == "true"
    assert "last-event-id" not in request.headers


def test_a_stream_can_begin_in_the_middle() -> None:
    script = Script(httpx.Response(200, content=sse(6, done=OVER)))
    assert seqs(script, after=5) == [6]
    assert script.requests[0].headers["last-event-id"] == "5"


def test_a_broken_connection_is_taken_up_after_the_last_event() -> None:
    script = Script(
        httpx.Response(200, stream=Breaking(sse(1, 2), b"id: 3\ndata: half")),
        httpx.ConnectError("restarting"),
        refusal(503),
        httpx.Response(200, content=sse(3)),
        httpx.Response(200, content=sse(4, done=OVER)),
    )
    assert seqs(script) == [1, 2, 3, 4]
    sent = [request.headers.get("last-event-id") for request in script.requests]
    assert sent == [None, "2", "2", "2", "3"]


def test_an_event_that_is_sent_again_is_given_once() -> None:
    script = Script(
        httpx.Response(200, content=sse(1, 2)), httpx.Response(200, content=sse(1, 2, 3, done=OVER))
    )
    assert seqs(script) == [1, 2, 3]


def test_events_of_a_newer_kind_are_passed_over() -> None:
    script = Script(httpx.Response(200, content=b"event: news\ndata: x\n\n" + sse(1, done=OVER)))
    assert seqs(script) == [1]


def test_a_job_that_does_not_exist_is_told_at_once() -> None:
    script = Script(refusal(404))
    with pytest.raises(NotFoundError):
        seqs(script)
    assert len(script.requests) == 1


def test_a_server_that_stays_away_is_given_up_after_five_minutes() -> None:
    clock = Clock()
    with pytest.raises(APIConnectionError, match="no answer from the server for 300 s"):
        seqs(Script(httpx.ConnectError("refused")), clock)
    assert 300 < sum(clock.naps) < 320


def test_a_slow_reader_is_not_mistaken_for_a_silent_server() -> None:
    clock = Clock()
    script = Script(
        httpx.Response(200, stream=Breaking(sse(1))), httpx.Response(200, content=sse(2, done=OVER))
    )
    stream = client_of(script, clock).fine_tuning.jobs.stream("ftjob-1")
    assert next(stream).seq == 1
    clock.time += 3600
    assert [event.seq for event in stream] == [2]

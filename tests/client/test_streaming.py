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


def test_events_arrive_in_order_until_the_job_ends() -> None:
    script = Script(httpx.Response(200, content=b": ping\n\n" + sse(1, 2, 3, done=OVER)))
    assert seqs(script) == [1, 2, 3]
    request = script.requests[0]
    assert request.url.params["stream"] == "true"
    assert "last-event-id" not in request.headers


def test_a_stream_can_start_after_an_event() -> None:
    script = Script(httpx.Response(200, content=sse(6, done=OVER)))
    assert seqs(script, after=5) == [6]
    assert script.requests[0].headers["last-event-id"] == "5"


def test_a_broken_connection_resumes_after_the_last_event() -> None:
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


def test_an_event_that_is_sent_again_is_yielded_once() -> None:
    script = Script(
        httpx.Response(200, content=sse(1, 2)), httpx.Response(200, content=sse(1, 2, 3, done=OVER))
    )
    assert seqs(script) == [1, 2, 3]


def test_events_of_an_unknown_kind_are_skipped() -> None:
    script = Script(httpx.Response(200, content=b"event: news\ndata: x\n\n" + sse(1, done=OVER)))
    assert seqs(script) == [1]


def test_an_unknown_job_is_an_error_at_once() -> None:
    script = Script(refusal(404))
    with pytest.raises(NotFoundError):
        seqs(script)
    assert len(script.requests) == 1


def test_following_ends_after_five_minutes_without_a_server() -> None:
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

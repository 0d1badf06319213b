"""Live events over SSE: backlog, new events, resume, and the end."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tunesmith_server.api.stream import EventHub, _News
from tunesmith_server.services import keys

from .actors import Server
from .callers import event
from .live import listening


@dataclass(frozen=True)
class Message:
    id: str
    event: str
    data: Any  # Any: JSON


def messages(lines: Iterator[str]) -> Iterator[Message]:
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(":")
            fields[name] = value.removeprefix(" ")
        elif fields:
            yield Message(fields.get("id", ""), fields["event"], json.loads(fields["data"]))
            fields = {}


def stream_of(server: Server, job_id: str, **options: Any) -> list[Message]:
    """Whole event stream of a job that has ended."""
    reply = server.user.get(
        f"/v1/fine_tuning/jobs/{job_id}/events",
        params={"stream": "true", **options.pop("params", {})},
        **options,
    )
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    return list(messages(iter(reply.text.split("\n"))))


@pytest.fixture
def ended(server: Server) -> str:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.worker.report(claim, events=[event(1, "one"), event(2, "two")])
    server.worker.succeed(claim)
    return job_id


def test_the_stream_of_an_ended_job_is_its_history_and_the_job(server: Server, ended: str) -> None:
    *told, last = stream_of(server, ended)
    assert [message.data["message"] for message in told] == server.messages(ended)
    assert [message.id for message in told] == [str(n) for n in range(1, len(told) + 1)]
    assert {message.event for message in told} == {"event"}
    assert (last.event, last.data["status"], last.data["id"]) == ("done", "succeeded", ended)


def test_a_reader_that_comes_back_gets_the_rest(server: Server, ended: str) -> None:
    whole = stream_of(server, ended)
    for seen in range(len(whole)):
        rest = stream_of(server, ended, headers={"last-event-id": str(seen)})
        assert rest == whole[seen:]


def test_after_starts_a_stream_too(server: Server, ended: str) -> None:
    whole = stream_of(server, ended)
    after = whole[1].data["id"]
    assert stream_of(server, ended, params={"after": after}) == whole[2:]
    both = stream_of(server, ended, params={"after": after}, headers={"last-event-id": "3"})
    assert both == whole[3:], "a reconnecting EventSource repeats its first address"


@pytest.mark.parametrize("given", ["", "x", "-1", "1.5", "9" * 40, "9" * 200])
def test_a_last_event_id_that_is_not_ours_means_everything(
    server: Server, ended: str, given: str
) -> None:
    assert stream_of(server, ended, headers={"last-event-id": given}) == stream_of(server, ended)


def test_more_events_than_one_batch_arrive_once_and_in_order(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    for start in (1, 501):
        server.worker.report(claim, events=[event(n) for n in range(start, start + 500)])
    server.worker.report(claim, outcome={"state": "cancelled"})
    *told, last = stream_of(server, job_id)
    assert [int(message.id) for message in told] == list(range(1, len(server.messages(job_id)) + 5))
    assert last.event == "done"


def test_an_unknown_job_has_no_stream(server: Server) -> None:
    reply = server.user.get("/v1/fine_tuning/jobs/ftjob-none/events?stream=true")
    assert reply.status_code == 404


def test_a_watcher_sees_events_as_they_come(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    with listening(server.app) as url, httpx2.Client(timeout=10) as http:
        headers = dict(server.user.headers)
        path = f"{url}/v1/fine_tuning/jobs/{job_id}/events?stream=true"
        with http.stream("GET", path, headers=headers) as reply:
            coming = messages(reply.iter_lines())
            for known in server.messages(job_id):
                assert next(coming).data["message"] == known
            for number in (1, 2, 3):
                server.worker.report(claim, events=[event(number, f"live {number}")])
                assert next(coming).data["message"] == f"live {number}"
            server.worker.succeed(claim)
            assert next(coming).data["data"]["state"] == "succeeded"
            assert next(coming).event == "done"
            assert next(coming, None) is None


def test_a_stopping_server_ends_its_streams_at_once(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    with httpx2.Client(timeout=10) as http, ThreadPoolExecutor(1) as pool:
        with listening(server.app) as url:
            path = f"{url}/v1/fine_tuning/jobs/{job_id}/events?stream=true"
            request = http.build_request("GET", path, headers=server.user.headers)
            coming = messages(http.send(request, stream=True).iter_lines())
            told = [next(coming).data["message"] for _ in server.messages(job_id)]
            rest = pool.submit(list, coming)
            stopped = time.monotonic()
        assert time.monotonic() - stopped < 3
        assert rest.result() == [], "no `done`: the reader comes back and resumes"
    assert told == server.messages(job_id)


def test_the_tailer_outlives_a_failing_database(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    news, failures = EventHub._news, [RuntimeError("database is locked")]

    def fail_once(hub: EventHub, heads: dict[str, int]) -> list[_News]:
        if failures:
            raise failures.pop()
        return news(hub, heads)

    monkeypatch.setattr(EventHub, "_news", fail_once)
    with caplog.at_level(logging.ERROR):
        test_a_watcher_sees_events_as_they_come(server)
    assert "cannot follow the watched jobs" in caplog.text


def test_a_revoked_key_ends_its_streams_and_no_others(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith_server.api.stream.KEY_SECONDS", 0.1)
    job_id = server.create_job(server.good_file())
    path = f"/v1/fine_tuning/jobs/{job_id}/events?stream=true"
    other = server.new_user("bob")
    with server.database.read() as session:
        [bob] = [row.id for row in keys.list_all(session) if row.name == "bob"]
    with listening(server.app) as url, httpx2.Client(timeout=3) as http:
        with (
            http.stream("GET", url + path, headers=dict(other.headers)) as ending,
            http.stream("GET", url + path, headers=dict(server.user.headers)) as staying,
        ):
            with server.database.write.begin() as session:
                keys.revoke(session, bob)
            assert "done" not in ending.read().decode(), "the stream ended, the job did not"
            server.ask(job_id, "cancel")
            assert list(messages(staying.iter_lines()))[-1].event == "done"
        again = http.get(url + path, headers=dict(other.headers))
        assert again.status_code == 401

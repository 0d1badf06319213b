"""Reader of a job's events over SSE until the job ends, across broken connections and server
restarts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing

import httpx

from tunesmith._http.backoff import backoff
from tunesmith._http.connection import Http, connection_error, path_of
from tunesmith._http.errors import (
    APIConnectionError,
    APIStatusError,
    TunesmithError,
    WaitTimeoutError,
)
from tunesmith._http.sse import ServerSentEvent, events, lines
from tunesmith_schema import Event, EventKind, JobState

from .job import Job

SERVER_TIMEOUT = 300.0
"""Seconds without an answer from the server after which `follow` fails."""
READ_TIMEOUT = 60.0
"""Seconds without an event or heartbeat after which the client reconnects."""


OnConnection = Callable[[TunesmithError | None], None]


def follow(
    http: Http,
    job_id: str,
    *,
    after_seq: int | None = None,
    timeout: float | None = None,
    on_connection: OnConnection | None = None,
) -> Generator[Event | Job, None, None]:
    """Yield each event once, in order, then the finished job.

    `timeout` is checked at every server message, including heartbeats. `on_connection` is called
    with the problem when the connection is lost, and with None when the connection is back.
    """
    on_connection = on_connection or (lambda problem: None)
    follower = _Follower(http, job_id, after_seq, timeout, on_connection)
    attempt = 0
    while True:
        problem: TunesmithError | None = None
        try:
            with closing(follower.read()) as items:
                for item in items:
                    attempt = 0
                    yield item
                    if isinstance(item, Job):
                        return
        except APIConnectionError as error:
            problem = error
        except APIStatusError as error:
            if not is_temporary(error):
                raise
            problem = error
        if problem is not None:
            on_connection(problem)
        follower.pause(attempt, problem)
        attempt += 1


def is_temporary(error: APIStatusError) -> bool:
    """Return True for errors that a restarting server or its proxy returns."""
    return error.retryable or error.status_code in (408, 429) or error.status_code >= 500


class _Follower:
    """Reader that keeps its position in a job's events across connections."""

    def __init__(
        self,
        http: Http,
        job_id: str,
        after_seq: int | None,
        timeout: float | None,
        on_connection: OnConnection,
    ) -> None:
        self._http = http
        self._job_id = job_id
        self._seq = after_seq
        self._on_connection = on_connection
        self._timeout = timeout
        self._deadline = None if timeout is None else http.now() + timeout
        self._down_since: float | None = None
        self._state = ""
        self._wait_call = f"client.fine_tuning.jobs.wait('{job_id}')"

    def read(self) -> Generator[Event | Job, None, None]:
        response = self._open()
        self._on_connection(None)
        try:
            for message in events(lines(response.iter_bytes())):
                self._down_since = None
                item = None if message is None else self._parse(message, response)
                if item is not None:
                    yield item
                self._check_deadline()
        except httpx.RequestError as error:
            raise connection_error(error) from error
        finally:
            response.close()

    def pause(self, attempt: int, problem: TunesmithError | None) -> None:
        """Sleep before the next connection. Raise an error if the timeout has passed, or if the
        server was unreachable for SERVER_TIMEOUT."""
        self._check_deadline()
        now = self._http.now()
        self._down_since = self._down_since or now
        if now - self._down_since > SERVER_TIMEOUT:
            raise APIConnectionError(
                f"no answer from the server for {SERVER_TIMEOUT:.0f} s while waiting for job "
                f"{self._job_id}",
                hint=f"the job may still be running: {self._wait_call} waits again",
            ) from problem
        delay = backoff(attempt)
        if self._deadline is not None:
            delay = min(delay, max(0.0, self._deadline - now))
        self._http.sleep(delay)

    def _open(self) -> httpx.Response:
        read_timeout = READ_TIMEOUT
        if self._deadline is not None:
            read_timeout = min(read_timeout, max(0.1, self._deadline - self._http.now()))
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._seq is not None:
            headers["Last-Event-ID"] = str(self._seq)
        return self._http.send(
            "GET",
            path_of("fine_tuning", "jobs", self._job_id, "events"),
            params={"stream": "true"},
            headers=headers,
            read_timeout=read_timeout,
            stream=True,
            retries=0,
        )

    def _parse(self, message: ServerSentEvent, response: httpx.Response) -> Event | Job | None:
        if message.event == "done":
            return self._http.parse_json(Job, message.data, response)
        if message.event != "event":
            return None
        event = self._http.parse_json(Event, message.data, response)
        if self._seq is not None and event.seq <= self._seq:
            return None
        self._seq = event.seq
        if event.kind is EventKind.STATE:
            self._state = str(event.data.get("state", ""))
        return event

    def _check_deadline(self) -> None:
        if self._deadline is not None and self._http.now() >= self._deadline:
            paused = self._state == JobState.PAUSED
            raise WaitTimeoutError(
                f"job {self._job_id} did not end within {self._timeout:g} s"
                + (" and is paused" if paused else ""),
                hint=f"client.fine_tuning.jobs.resume('{self._job_id}') continues the job"
                if paused
                else f"the job continues: {self._wait_call} waits again",
            )

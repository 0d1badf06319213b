"""A job's events over SSE, across dropped connections and server restarts, to the job's end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing

import httpx

from tunesmith._http.backoff import backoff
from tunesmith._http.connection import Http, connection_error, parse_json, path_of
from tunesmith._http.errors import (
    APIConnectionError,
    APIStatusError,
    TunesmithError,
    WaitTimeoutError,
)
from tunesmith._http.sse import ServerSentEvent, events, lines
from tunesmith_schema import Event, EventKind, JobState

from .job import Job

_PATIENCE = 300.0
"""Seconds without a sign of the server after which it counts as gone."""
_SILENCE = 60.0
"""Seconds without even a heartbeat after which a connection counts as dead."""


def follow(
    http: Http, job_id: str, *, after_seq: int | None = None, timeout: float | None = None
) -> Generator[Event | Job, None, None]:
    """Events in order, none twice, then the finished job.

    `timeout` is looked at whenever the server says something, at least with every heartbeat.
    """
    follower = _Follower(http, job_id, after_seq, timeout)
    attempt = 0
    while True:
        problem: TunesmithError | None = None
        try:
            with closing(follower.connection()) as items:
                for item in items:
                    attempt = 0
                    yield item
                    if isinstance(item, Job):
                        return
        except APIConnectionError as error:
            problem = error
        except APIStatusError as error:
            if not _may_pass(error):
                raise
            problem = error
        follower.pause(attempt, problem)
        attempt += 1


def _may_pass(error: APIStatusError) -> bool:
    """What a server says, or a proxy for it, while it is being restarted."""
    return error.retryable or error.status_code in (408, 429) or error.status_code >= 500


class _Follower:
    def __init__(
        self, http: Http, job_id: str, after_seq: int | None, timeout: float | None
    ) -> None:
        self._http = http
        self._job_id = job_id
        self._seq = after_seq
        self._timeout = timeout
        self._deadline = None if timeout is None else http.now() + timeout
        self._down_since: float | None = None
        self._state = ""

    def connection(self) -> Generator[Event | Job, None, None]:
        """What one connection brings."""
        response = self._open()
        try:
            for message in events(lines(response.iter_bytes())):
                self._down_since = None
                item = None if message is None else self._read(message, response)
                if item is not None:
                    yield item
                self._check_deadline()
        except httpx.RequestError as error:
            raise connection_error(error) from error
        finally:
            response.close()

    def pause(self, attempt: int, problem: TunesmithError | None) -> None:
        """Before the next connection; raises when there shall be none."""
        self._check_deadline()
        now = self._http.now()
        self._down_since = self._down_since or now
        if now - self._down_since > _PATIENCE:
            raise APIConnectionError(
                f"gave up on job {self._job_id}: no sign of the server for {_PATIENCE:.0f} s",
                hint=f"the job may go on; look again with: tunesmith jobs watch {self._job_id}",
            ) from problem
        left = None if self._deadline is None else max(0.0, self._deadline - now)
        delay = backoff(attempt)
        self._http.sleep(delay if left is None else min(delay, left))

    def _open(self) -> httpx.Response:
        silence = _SILENCE
        if self._deadline is not None:
            silence = min(silence, max(0.1, self._deadline - self._http.now()))
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if self._seq is not None:
            headers["Last-Event-ID"] = str(self._seq)
        return self._http.send(
            "GET",
            path_of("fine_tuning", "jobs", self._job_id, "events"),
            params={"stream": "true"},
            headers=headers,
            read_timeout=silence,
            stream=True,
            retries=0,
        )

    def _read(self, message: ServerSentEvent, response: httpx.Response) -> Event | Job | None:
        if message.event == "done":
            return parse_json(Job, message.data, response)
        if message.event != "event":
            return None
        event = parse_json(Event, message.data, response)
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
                f"job {self._job_id} was not over after {self._timeout:g} s"
                + (": it is paused" if paused else ""),
                hint=f"it goes on after: tunesmith jobs resume {self._job_id}"
                if paused
                else f"it goes on; wait again, or look with: tunesmith jobs watch {self._job_id}",
            )

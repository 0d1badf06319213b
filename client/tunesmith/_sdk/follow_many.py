"""Reader of the events of many jobs over one SSE stream, across broken connections."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing

import httpx
from pydantic import BaseModel

from tunesmith._http.backoff import backoff
from tunesmith._http.connection import Http, connection_error
from tunesmith._http.errors import APIConnectionError, APIStatusError, TunesmithError
from tunesmith._http.sse import ServerSentEvent, events, lines
from tunesmith_schema import Event, JobDeleted
from tunesmith_schema.progress import JobProgress

from .follow import READ_TIMEOUT, SERVER_TIMEOUT, is_temporary
from .job import Job

Item = Event | Job | JobDeleted | JobProgress
_MODELS: dict[str, type[BaseModel]] = {
    "event": Event,
    "done": Job,
    "deleted": JobDeleted,
    "job": JobProgress,
}


def follow_many(
    http: Http, jobs: Mapping[str, int] | Sequence[str], *, everything: bool
) -> Generator[Item, None, None]:
    """Yield each event of `jobs` once, and each job when it has ended. `jobs` is a list of job ids,
    or a mapping from each job id to the sequence number of its last known event. With `everything`,
    also yield the progress of all jobs of the project. Without `everything`, the generator ends
    after the last job."""
    start = jobs if isinstance(jobs, Mapping) else dict.fromkeys(jobs, 0)
    parts = [f"{job_id}:{seq}" for job_id, seq in start.items()]
    position = ",".join([*parts, "*"] if everything else parts)
    attempt, down_since = 0, None
    while not _is_complete(position):
        problem: TunesmithError | None = None
        try:
            with closing(_read(http, position)) as items:
                for reached, item in items:
                    position, attempt, down_since = reached, 0, None
                    yield item
        except APIConnectionError as error:
            problem = error
        except APIStatusError as error:
            if not is_temporary(error):
                raise
            problem = error
        if _is_complete(position):
            return
        now = http.now()
        down_since = down_since or now
        if now - down_since > SERVER_TIMEOUT:
            raise APIConnectionError(
                f"no answer from the server for {SERVER_TIMEOUT:.0f} s while following jobs",
                hint="the jobs may still be running: follow them again",
            ) from problem
        http.sleep(backoff(attempt))
        attempt += 1


def _is_complete(position: str) -> bool:
    return all(part.endswith(":done") for part in position.split(",") if part)


def _read(http: Http, position: str) -> Generator[tuple[str, Item], None, None]:
    response = http.send(
        "GET",
        "fine_tuning/events",
        params={"stream": "true", "jobs": position},
        headers={"Accept": "text/event-stream", "Cache-Control": "no-store"},
        read_timeout=READ_TIMEOUT,
        stream=True,
        retries=0,
    )
    try:
        for message in events(lines(response.iter_bytes())):
            if message is not None and (item := _parse(http, message, response)) is not None:
                position = message.id or position
                yield position, item
    except httpx.RequestError as error:
        raise connection_error(error) from error
    finally:
        response.close()


def _parse(http: Http, message: ServerSentEvent, response: httpx.Response) -> Item | None:
    """Return the item of a message, or None if this version does not know the message's kind."""
    model = _MODELS.get(message.event)
    if model is None:
        return None
    item = http.parse_json(model, message.data, response)
    assert isinstance(item, Event | Job | JobDeleted | JobProgress)
    return item

"""Live events for many watchers: one tailer per process asks the database, however many watch.

A watcher reads the backlog itself, then waits for the hub to say that its job has something new.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from sqlalchemy import select
from starlette.concurrency import run_in_threadpool

from tunesmith_schema import TERMINAL, Event, Job

from .database import Database
from .models import JobRow
from .services import events, jobs
from .services.paging import number_in

log = logging.getLogger(__name__)

TAIL_SECONDS = 0.25
PING_SECONDS = 15.0
_BATCH = 500


class EventHub:
    """Follows the jobs that somebody watches."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed: dict[str, asyncio.Event] = {}
        self._watchers: dict[str, int] = {}
        self._last_seq: dict[str, int] = {}
        self._closing = False

    async def run(self) -> None:
        """Tail the database until cancelled: one query a round for all watched jobs."""
        while True:
            await asyncio.sleep(TAIL_SECONDS)
            if not self._watchers:
                continue
            try:
                heads = await run_in_threadpool(self._heads)
            except Exception:  # the next round may do better; a dead tailer never does
                log.exception("cannot follow the watched jobs")
                continue
            for job_id, seq in heads.items():
                if seq != self._last_seq.get(job_id):
                    self._last_seq[job_id] = seq
                    self._notify(job_id)

    def close(self) -> None:
        """End all streams, so that the process can leave; clients reconnect and resume."""
        self._closing = True
        for job_id in list(self._changed):
            self._notify(job_id)

    async def sse(self, job_id: str, after_seq: int) -> AsyncIterator[bytes]:
        """SSE bytes: all events after `after_seq`, live ones as they come, at the end `done`."""
        self._watchers[job_id] = self._watchers.get(job_id, 0) + 1
        try:
            while not self._closing:
                changed = self._changed.setdefault(job_id, asyncio.Event())
                batch, job = await run_in_threadpool(self._read, job_id, after_seq)
                for event in batch:
                    after_seq = event.seq
                    yield format_sse_event(
                        id=str(event.seq), event="event", data_str=event.model_dump_json()
                    )
                if len(batch) == _BATCH:
                    continue
                if job.state in TERMINAL:
                    yield format_sse_event(event="done", data_str=job.model_dump_json())
                    return
                try:
                    await asyncio.wait_for(changed.wait(), PING_SECONDS)
                except TimeoutError:
                    yield KEEPALIVE_COMMENT
        finally:
            self._watchers[job_id] -= 1
            if not self._watchers[job_id]:
                del self._watchers[job_id]
                self._changed.pop(job_id, None)
                self._last_seq.pop(job_id, None)

    def _notify(self, job_id: str) -> None:
        if event := self._changed.pop(job_id, None):
            event.set()

    def _heads(self) -> dict[str, int]:
        with self._database.read() as session:
            rows = session.execute(
                select(JobRow.id, JobRow.last_seq).where(JobRow.id.in_(list(self._watchers)))
            )
            return {job_id: seq for job_id, seq in rows}

    def _read(self, job_id: str, after_seq: int) -> tuple[list[Event], Job]:
        # The job first: a state read after the events could end the stream before the last one.
        with self._database.read() as session:
            job = jobs.to_wire(jobs.retrieve(session, job_id))
            batch = events.since(session, job_id, after_seq, _BATCH)
        return batch, job


def parse_last_event_id(value: str | None) -> int:
    """The number in a `Last-Event-ID` header; 0 (everything) when absent or not ours."""
    return number_in(value or "") or 0

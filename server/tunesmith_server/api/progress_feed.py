"""Live state and progress of all jobs of a project.

One database poll per process serves all clients that watch a project.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from tunesmith_schema.progress import JobProgress
from tunesmith_server.core.database import Database
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.services.training import job_progress
from tunesmith_server.services.training.job_progress import Head

log = logging.getLogger(__name__)

ROUND_SECONDS = 0.5
_REST = 20
"""Minimum pause after each database poll, as a multiple of the CPU time of this poll."""
_MAX_CHANGES = 2000
"""Number of changes that a feed keeps; a watcher that missed more changes gets all jobs again."""
_CLOCK_SECONDS = 60.0
"""Maximum difference between the clocks of API processes. Also the maximum delay between a job's
end time and the commit that stores it."""

Render = Callable[[JobProgress], bytes]
"""Function that returns a change as one line of SSE data."""


def to_json(progress: JobProgress) -> bytes:
    return progress.model_dump_json().encode()


@dataclass(frozen=True)
class Change:
    """A change of a job's state or progress, with the number of the change in the project's
    feed."""

    number: int
    progress: JobProgress
    _rendered: dict[Render, bytes] = field(default_factory=dict)

    def rendered(self, render: Render) -> bytes:
        """Return the text that `render` makes of a change; each process calls `render` once per
        change."""
        if render not in self._rendered:
            self._rendered[render] = render(self.progress)
        return self._rendered[render]


class ProgressFeed:
    """Unfinished jobs of one project, and the latest changes of its jobs."""

    def __init__(self) -> None:
        self.wakes: set[asyncio.Event] = set()
        """One asyncio.Event per watcher, set after each change."""
        self.is_ready = False
        self.number = 0
        self.polled_at = time.time()
        self.heads: dict[str, Head] = {}
        self._unfinished: dict[str, Change] = {}
        self._changes: deque[Change] = deque(maxlen=_MAX_CHANGES)
        self.ended: deque[str] = deque(maxlen=_MAX_CHANGES)
        """Ids of the jobs that have ended."""

    def apply(self, news: _News) -> None:
        is_first, self.is_ready, self.polled_at = not self.is_ready, True, news.polled_at
        for progress in news.changed:
            self.number += 1
            change = Change(self.number, progress)
            self._changes.append(change)
            head = news.heads.get(progress.id)
            if progress.state in job_progress.UNFINISHED and head is not None:
                self._unfinished[progress.id], self.heads[progress.id] = change, head
            else:
                self._unfinished.pop(progress.id, None)
                self.heads.pop(progress.id, None)
                self.ended.append(progress.id)
        for wake in self.wakes if news.changed or is_first else ():
            wake.set()

    def unfinished(self) -> list[Change]:
        return list(self._unfinished.values())

    def after(self, number: int) -> list[Change] | None:
        """Return the changes after `number`; None if the feed no longer has all of them."""
        if self.number == number:
            return []
        if self._changes[0].number > number + 1:
            return None
        newest_first = []
        for change in reversed(self._changes):
            if change.number <= number:
                break
            newest_first.append(change)
        return newest_first[::-1]


@dataclass(frozen=True, kw_only=True)
class _News:
    polled_at: float
    changed: list[JobProgress]
    heads: dict[str, Head]


class ProgressHub:
    """Feeds of all projects that have watchers."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._feeds: dict[str, ProgressFeed] = {}

    async def run(self) -> None:
        """Poll the database until the task is cancelled, with one query per round for all watched
        projects."""
        pause = ROUND_SECONDS
        while True:
            await asyncio.sleep(pause)
            feeds = dict(self._feeds)
            if not feeds:
                continue
            try:
                news, seconds = await run_in(Plane.STREAMS, partial(self._poll, feeds))
            except Exception:  # one failed round must not end the task
                log.exception("cannot follow the watched projects")
                continue
            for project, found in news.items():
                feeds[project].apply(found)
            pause = max(ROUND_SECONDS, _REST * seconds)

    @contextmanager
    def following(self, project: str, wake: asyncio.Event) -> Iterator[ProgressFeed]:
        """Follow the jobs of a project inside the `with` block; the event `wake` is set after each
        change."""
        feed = self._feeds.setdefault(project, ProgressFeed())
        feed.wakes.add(wake)
        try:
            yield feed
        finally:
            feed.wakes.remove(wake)
            if not feed.wakes and self._feeds.get(project) is feed:
                del self._feeds[project]

    async def ended_since(self, project: str, seconds: float) -> list[JobProgress]:
        """Return the jobs that ended since `seconds` (Unix time), and possibly jobs that ended up
        to a minute earlier."""

        def read() -> list[JobProgress]:
            with self._database.read() as session:
                return job_progress.ended_since(session, project, seconds - _CLOCK_SECONDS)

        return await run_in(Plane.STREAMS, read)

    def _poll(self, feeds: dict[str, ProgressFeed]) -> tuple[dict[str, _News], float]:
        polled_at, start = time.time(), time.thread_time()
        earliest = min(feed.polled_at for feed in feeds.values())
        news = {}
        with self._database.read() as session:
            found = job_progress.heads(session, list(feeds), earliest - _CLOCK_SECONDS)
            for project, heads in found.items():
                feed = feeds[project]
                changed = [
                    job_id
                    for job_id, head in heads.items()
                    if feed.heads.get(job_id) != head and job_id not in feed.ended
                ]
                changed += feed.heads.keys() - heads.keys()
                read = job_progress.read(session, changed)
                news[project] = _News(polled_at=polled_at, changed=read, heads=heads)
        return news, time.thread_time() - start

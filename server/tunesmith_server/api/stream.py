"""Live events of jobs. A watcher is a client that follows a job. Each process reads and formats an
event once for all its watchers.

A watcher reads the backlog from the database, then follows its job's feed. A watcher that falls
behind the feed reads from the database until it has caught up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile

from fastapi.sse import KEEPALIVE_COMMENT
from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, Event, Job, JobState
from tunesmith_server.core.database import Database
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.models import JobRow
from tunesmith_server.services import keys
from tunesmith_server.services.pages import json_of
from tunesmith_server.services.paging import number_in
from tunesmith_server.services.training import events, jobs

from .progress_feed import ProgressHub

log = logging.getLogger(__name__)

TAIL_SECONDS = 0.25
PING_SECONDS = 15.0
KEY_SECONDS = 2.0
"""Time between two checks of the watchers' keys."""
_WRITE_BYTES = 64 * 1024
"""Maximum size in bytes of the pieces that are sent to a watcher. For a slow watcher, one piece
stays in memory."""
_OVER, _KNOWN = frozenset(map(str, TERMINAL)), frozenset(map(str, JobState))
_FEED_BYTES = 1024 * 1024
"""Maximum number of bytes of recent events that a feed keeps for slow watchers. For each feed,
one poll of the database also reads about this many bytes at most."""

Use = tuple[str, str]
"""Id of an API key, and id of the project in which the key is used."""
Line = tuple[int, bytes]
"""Number of an event, and the event's SSE message as bytes, without the line `id:` and the empty
line at the end."""


class Feed:
    """Newest events of one job as SSE bytes, from event number `base` + 1 to `head`."""

    def __init__(self) -> None:
        self.watchers = 0
        self.head: int | None = None
        """Newest event number; None until the first watcher has caught up with the database."""
        self.base = 0
        self.done: bytes | None = None
        """SSE message after the job's last event, without the empty line that ends a message."""
        self.changed = asyncio.Event()
        self.wakes: set[asyncio.Event] = set()
        """One asyncio.Event for each watcher that follows many jobs, set after each change."""
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._next: tuple[int, Line] | None = None
        """Cache of `after`: its last argument and result."""

    def start(self, seq: int) -> None:
        if self.head is None:
            self.head = self.base = seq

    def add(self, seq: int, line: bytes) -> None:
        self.head, self._next = seq, None
        self._lines.append((seq, line))
        self._bytes += len(line)
        while self._bytes > _FEED_BYTES:
            self.base, dropped = self._lines.popleft()
            self._bytes -= len(dropped)

    def reaches_back_to(self, seq: int) -> bool:
        return self.head is not None and seq >= self.base

    def after(self, seq: int) -> Line | None:
        """Return the next events after `seq` as one piece, with the number of the last event."""
        if self._next is None or self._next[0] != seq:  # nearly all watchers have the same position
            lines = self.lines_after(seq)
            if not lines:
                return None
            self._next = (seq, _joined(lines))
        return self._next[1]

    def lines_after(self, seq: int) -> list[Line]:
        """Return the next events after `seq`, up to `_WRITE_BYTES`."""
        newest_first = takewhile(lambda line: line[0] > seq, reversed(self._lines))
        return _take(reversed(list(newest_first)), _WRITE_BYTES)[0]

    def notify(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()
        for wake in self.wakes:
            wake.set()


@dataclass(frozen=True, kw_only=True)
class _News:
    """Events of one job that the job's feed does not have yet."""

    job_id: str
    lines: list[Line]
    done: bytes | None


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """Events of a job that a watcher does not have yet, as bytes."""

    job: Job
    last_seq: int
    lines: list[Line]
    more: bool


class EventHub:
    """Feeds of all jobs with watchers."""

    def __init__(self, database: Database) -> None:
        self.progress = ProgressHub(database)
        self._database = database
        self._feeds: dict[str, Feed] = {}
        self._wakes: set[asyncio.Event] = set()
        """One asyncio.Event for each watcher that follows many jobs, set when a key is revoked or
        the process ends."""
        self._closing = False
        self._uses: Counter[Use] = Counter()
        """Number of watchers and open chat requests by API key and project."""
        self._revoked: set[Use] = set()
        self._revocation = asyncio.Event()

    async def run(self) -> None:
        """Poll the database until the task is cancelled: one query per round, plus one query per
        job with new events."""
        while True:
            await asyncio.sleep(TAIL_SECONDS)
            heads = {name: feed.head for name, feed in self._feeds.items() if not feed.done}
            known = {name: head for name, head in heads.items() if head is not None}
            if not known:
                continue
            try:
                news = await run_in(Plane.STREAMS, partial(self._news, known))
            except Exception:  # one failed round must not end the task
                log.exception("cannot follow the watched jobs")
                continue
            for update in news:
                feed = self._feeds.get(update.job_id)
                if feed is None or feed.head != known[update.job_id]:
                    continue  # the feed ended during the query; a new feed may exist
                for seq, line in update.lines:
                    feed.add(seq, line)
                feed.done = update.done
                feed.notify()

    async def check_keys(self) -> None:
        """End the streams and the chat requests of keys that no longer give access to their
        project; repeat until the task is cancelled."""
        while True:
            await asyncio.sleep(KEY_SECONDS)
            if not self._uses:
                continue
            try:
                revoked = await run_in(Plane.STREAMS, partial(self._revoked_of, set(self._uses)))
            except Exception:  # one failed round must not end the task
                log.exception("cannot check the watchers' keys")
                continue
            self._revoked = revoked
            if revoked:
                self._notify_all()
                self._revocation.set()
                self._revocation = asyncio.Event()

    async def until_revoked(self, use: Use) -> None:
        """Wait until the key no longer gives access to the project.

        The function returns up to KEY_SECONDS after the end of the access.
        """
        self._uses[use] += 1
        try:
            while use not in self._revoked:
                await self._revocation.wait()
        finally:
            self._forget_use(use)

    def _forget_use(self, use: Use) -> None:
        self._uses[use] -= 1
        if not self._uses[use]:
            del self._uses[use]

    def close(self) -> None:
        """End all streams so that the process can exit; clients reconnect and resume."""
        self._closing = True
        self._notify_all()

    def _notify_all(self) -> None:
        for feed in self._feeds.values():
            feed.notify()
        for wake in self._wakes:
            wake.set()

    def ends(self, use: Use) -> bool:
        """Return True if the streams of this key in this project must end."""
        return self._closing or use in self._revoked

    @contextmanager
    def using(self, use: Use, wake: asyncio.Event) -> Iterator[None]:
        """Count a watcher that follows many jobs, until the `with` block ends. The event `wake` is
        set when the watcher's streams must end."""
        self._uses[use] += 1
        self._wakes.add(wake)
        try:
            yield
        finally:
            self._wakes.remove(wake)
            self._forget_use(use)

    @contextmanager
    def following(self, job_id: str, wake: asyncio.Event) -> Iterator[Feed]:
        """Follow a job inside the `with` block; the event `wake` is set after each change of the
        job's feed."""
        feed = self._enter(job_id)
        feed.wakes.add(wake)
        try:
            yield feed
        finally:
            feed.wakes.remove(wake)
            self._leave(job_id, feed)

    def _enter(self, job_id: str) -> Feed:
        feed = self._feeds.setdefault(job_id, Feed())
        feed.watchers += 1
        return feed

    def _leave(self, job_id: str, feed: Feed) -> None:
        feed.watchers -= 1
        if not feed.watchers and self._feeds.get(job_id) is feed:
            del self._feeds[job_id]

    async def sse(self, use: Use, job_id: str, after_seq: int) -> AsyncIterator[bytes]:
        """Yield the events after `after_seq` and all later events as SSE bytes; end with `done`, or
        when the key no longer gives access to the job's project."""
        feed = self._enter(job_id)
        self._uses[use] += 1
        try:
            while not self.ends(use):
                if not feed.reaches_back_to(after_seq):
                    backlog = await self.backlog(job_id, after_seq)
                    job, last_seq, more = backlog.job, backlog.last_seq, backlog.more
                    if backlog.lines:
                        after_seq, fresh = _joined(backlog.lines)
                        del backlog
                        yield fresh
                    if more:
                        continue
                    if job.state in TERMINAL:
                        yield done_line(job) + b"\n"
                        return
                    # `after_seq` may be larger than any event number.
                    feed.start(min(after_seq, last_seq))
                    continue
                changed = feed.changed
                if piece := feed.after(after_seq):
                    after_seq, fresh = piece
                    yield fresh
                elif feed.done:
                    yield feed.done + b"\n"
                    return
                else:
                    try:
                        async with asyncio.timeout(PING_SECONDS):
                            await changed.wait()
                    except TimeoutError:
                        yield KEEPALIVE_COMMENT
        finally:
            self._forget_use(use)
            self._leave(job_id, feed)

    async def backlog(self, job_id: str, after_seq: int) -> Backlog:
        """Read events after `after_seq` from the database. Raises NotFound."""
        return await run_in(Plane.STREAMS, partial(self._read, job_id, after_seq))

    def _revoked_of(self, uses: set[Use]) -> set[Use]:
        with self._database.read() as session:
            return uses - keys.valid(session, uses)

    def _news(self, heads: dict[str, int]) -> list[_News]:
        news = []
        with self._database.read() as session:
            rows = session.execute(
                select(JobRow.id, JobRow.last_seq, JobRow.state).where(JobRow.id.in_(heads))
            ).all()
            for job_id, last_seq, state in rows:
                # The state was read first: if the job has ended, its last event is readable now.
                ended = state in _OVER or state not in _KNOWN
                if last_seq == heads[job_id] and not ended:
                    continue
                lines, are_all = _take(_lines(session, job_id, heads[job_id]), _FEED_BYTES)
                over = ended and are_all
                done = done_line(jobs.to_wire(jobs.retrieve(session, job_id))) if over else None
                news.append(_News(job_id=job_id, lines=lines, done=done))
        return news

    def _read(self, job_id: str, after_seq: int) -> Backlog:
        # Read the job first: a later state could end the stream before its last event.
        with self._database.read() as session:
            row = jobs.retrieve(session, job_id)
            job, last_seq = jobs.to_wire(row), row.last_seq
            lines, are_all = _take(_lines(session, job_id, after_seq), _WRITE_BYTES)
        return Backlog(
            job=job,
            last_seq=max(last_seq, lines[-1][0] if lines else 0),
            lines=lines,
            more=not are_all,
        )


def _lines(session: Session, job_id: str, after_seq: int) -> Iterator[Line]:
    for event in events.since(session, job_id, after_seq):
        yield event.seq, _line(event)


def _take(lines: Iterable[Line], max_bytes: int) -> tuple[list[Line], bool]:
    """Return the first lines with about `max_bytes` in total; also return True if no lines are
    left."""
    taken, size = [], 0
    for line in lines:
        taken.append(line)
        size += len(line[1])
        if size >= max_bytes:
            return taken, False
    return taken, True


def _joined(lines: list[Line]) -> Line:
    return lines[-1][0], b"".join(b"%sid: %d\n\n" % (line, seq) for seq, line in lines)


def _line(event: Event) -> bytes:
    return b"event: event\ndata: %s\n" % json_of(event)


def done_line(job: Job) -> bytes:
    return b"event: done\ndata: %s\n" % json_of(job)


def parse_last_event_id(value: str | None) -> int:
    """Return the number in a `Last-Event-ID` header; 0 (all events) if the header is missing or
    invalid."""
    return number_in(value or "") or 0

"""One SSE stream for many jobs: events of named jobs, and state and progress of all jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack

from fastapi.sse import KEEPALIVE_COMMENT

from tunesmith_schema import TERMINAL, JobDeleted
from tunesmith_server.core.errors import NotFound

from . import progress_feed
from .progress_feed import Change, ProgressFeed, Render
from .stream import PING_SECONDS, EventHub, Feed, Use, done_line
from .watches import Position


async def sse(
    hub: EventHub,
    *,
    use: Use,
    position: Position,
    render: Render = progress_feed.to_json,
) -> AsyncIterator[bytes]:
    """Yield the SSE messages after `position` as bytes. The id of a message is the `Position` with
    which a client continues after this message. The stream ends when the key no longer gives access
    to the project. Unless `position.everything` is True, the stream also ends when all named jobs
    have ended.

    The caller has checked that the named jobs are in the project. `render` formats the change of a
    job as SSE data. Each process calls `render` once per change.
    """
    project_id = use[1]
    wake = asyncio.Event()
    with ExitStack() as stack:
        stack.enter_context(hub.using(use, wake))
        events = {
            job_id: stack.enter_context(hub.following(job_id, wake)) for job_id in position.open()
        }
        progress: _Progress | None = None
        if position.everything:
            feed = stack.enter_context(hub.progress.following(project_id, wake))
            progress = _Progress(hub, feed, project_id, render)
        while not hub.ends(use):
            wake.clear()
            is_idle = True
            for job_id in position.open():
                async for piece in _events(hub, events[job_id], job_id, position):
                    is_idle = False
                    yield piece
            if progress is not None and (piece := await progress.next(position)):
                is_idle = False
                yield piece
            if progress is None and not position.open():
                return
            if is_idle:
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await wake.wait()
                except TimeoutError:
                    yield KEEPALIVE_COMMENT


async def _events(
    hub: EventHub, feed: Feed, job_id: str, position: Position
) -> AsyncIterator[bytes]:
    """Yield the next events of a job, and a message `done` if no more events follow."""
    seq, done = position.seqs[job_id], None
    if feed.reaches_back_to(seq):
        lines = feed.lines_after(seq)
        done = None if lines else feed.done
    else:
        try:
            backlog = await hub.backlog(job_id, seq)
        except NotFound:
            position.ended.add(job_id)
            deleted = JobDeleted(id=job_id).model_dump_json().encode()
            yield _message(b"event: deleted\ndata: %s\n" % deleted, position)
            return
        lines = backlog.lines
        if not backlog.more and backlog.job.state in TERMINAL:
            done = done_line(backlog.job)
        elif not backlog.more:
            feed.start(min(lines[-1][0] if lines else seq, backlog.last_seq))
    if lines:
        messages = []
        for number, line in lines:
            position.seqs[job_id] = number
            messages.append(_message(line, position))
        yield b"".join(messages)
    if done is not None:
        position.ended.add(job_id)
        yield _message(done, position)


def _message(line: bytes, position: Position) -> bytes:
    return b"%sid: %s\n\n" % (line, position.text())


class _Progress:
    def __init__(self, hub: EventHub, feed: ProgressFeed, project_id: str, render: Render) -> None:
        self._hub, self._feed, self._project_id = hub, feed, project_id
        self._render = render
        self._number: int | None = None
        """Number of the last received change; None before the first."""
        self._started_at = int(time.time())

    async def next(self, position: Position) -> bytes:
        """Return the changes since the last call. The first call returns all unfinished jobs and
        the jobs that ended since `position.since`."""
        feed = self._feed
        if not feed.is_ready:
            return b""
        changes = None if self._number is None else feed.after(self._number)
        seen_at, self._number = int(feed.polled_at), feed.number
        if changes is None:
            since = self._started_at if position.since is None else position.since
            changes = feed.unfinished()
            ended = await self._hub.progress.ended_since(self._project_id, since)
            changes += [Change(0, progress) for progress in ended]
        if not changes:
            return b""
        lines = [b"event: job\ndata: %s\n" % change.rendered(self._render) for change in changes]
        position.since = seen_at
        # Only the last message has an id: a reader that has received only a part gets all messages
        # again.
        return b"\n".join([*lines[:-1], _message(lines[-1], position)])

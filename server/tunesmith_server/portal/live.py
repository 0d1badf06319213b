"""Live updates: one SSE stream per browser, for many topics.

For example, `GET /portal/live?watch=list,ftjob-a:812` sends the changed rows of the list of jobs,
and the events of the job `ftjob-a` after event 812. Each process renders a changed row only once
for all browsers that show the same project.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from pydantic_core import from_json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tunesmith_server.api.deps import State, state_of
from tunesmith_server.core.errors import NotFound
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.core.principal import Principal
from tunesmith_server.models import scope
from tunesmith_server.services import sessions
from tunesmith_server.services.training import jobs
from tunesmith_server.services.training.job_filters import JobFilters

from . import cookies, rendering, security
from .pages.jobs import line_of

log = logging.getLogger(__name__)

LIST = "list"
MAX_TOPICS = 32
"""Maximum number of topics of one stream; for a browser with more topics, only the first ones are
sent."""
ROUND_SECONDS = 0.5
"""Minimum time between two queries of the list of jobs."""
PING_SECONDS = 10.0
SESSION_SECONDS = 30.0
"""Time between two checks that the session of a stream has not ended."""
_ROWS = 50
_WAITING = 64
"""Maximum number of SSE pieces that wait for a slow browser; at this number, the stream reads no
further pieces."""
_TYPE = "text/event-stream"
_HELLO = b"retry: 1000\nevent: hello\ndata: {}\n\n"
_PING = b"event: ping\ndata: {}\n\n"


class Rows:
    """Changed rows of the list of jobs, for the browsers of all projects."""

    def __init__(self) -> None:
        self._feeds: dict[str, _RowFeed] = {}

    async def follow(self, request: Request, principal: Principal) -> AsyncIterator[bytes]:
        """Yield each changed row of the caller's project as SSE bytes."""
        project = principal.project_id
        feed = self._feeds.setdefault(project, _RowFeed(request.app, principal))
        queue: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
        feed.watchers.add(queue)
        if feed.task is None:
            feed.task = asyncio.create_task(feed.run())
        try:
            while True:
                yield await queue.get()
        finally:
            feed.watchers.discard(queue)
            if not feed.watchers:
                feed.task.cancel()
                self._feeds.pop(project, None)


class _RowFeed:
    """Changed rows of the list of jobs in one project, for all browsers that show this project's
    list."""

    def __init__(self, app: Starlette, principal: Principal) -> None:
        self.watchers: set[asyncio.Queue[bytes]] = set()
        self.task: asyncio.Task[None] | None = None
        self._app, self._principal = app, principal
        self._seen: dict[str, str] | None = None

    async def run(self) -> None:
        """Query the list after each change of a job in the project, until the task is cancelled."""
        state: State = self._app.state.tunesmith
        changed = asyncio.Event()
        with state.hub.progress.following(self._principal.project_id, changed):
            while True:
                changed.clear()
                try:
                    frames = await run_in(Plane.STREAMS, partial(self.changed, state))
                except Exception:  # one failed round must not end the task; the next one repeats it
                    log.exception("cannot read the rows of the list of jobs")
                    frames = []
                for queue in self.watchers:
                    for frame in frames:
                        if queue.full():
                            queue.get_nowait()  # for a slow browser, drop the oldest row
                        queue.put_nowait(frame)
                await asyncio.sleep(ROUND_SECONDS)
                await changed.wait()

    def changed(self, state: State) -> list[bytes]:
        """Return the rows of jobs that changed since the last call, oldest job first. Only the
        newest `_ROWS` jobs are compared. The first call of `changed` returns nothing."""
        with scope.limit(state.database.read(), self._principal.project) as session:
            page = jobs.list_jobs(
                session, after=None, limit=_ROWS, order="desc", filters=JobFilters(),
                with_curve=True,
            )  # fmt: skip
        items = from_json(page.content())["data"]
        marks = {item["id"]: _mark(item) for item in items}
        seen, self._seen = self._seen, marks
        if seen is None:
            return []
        fresh = [item for item in reversed(items) if seen.get(item["id"]) != marks[item["id"]]]
        return [_frame("row", self._row(item)) for item in fresh]

    def _row(self, item: dict[str, Any]) -> dict[str, Any]:  # Any: JSON
        has_page = self._app.state.portal_paths.__contains__
        html = rendering.render("_job_row.html", line=line_of(item), has_page=has_page)
        return {"id": item["id"], "state": item["state"], "html": html}


def _mark(item: dict[str, Any]) -> str:
    """Return the values that a row shows, except times such as "2 min ago"."""
    names = ("state", "phase", "step", "total_steps", "name", "suffix", "last_metrics", "curve")
    return json.dumps([item.get(name) for name in names])


def _frame(name: str, data: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def answer(request: Request) -> Response:
    """Start a stream. Topics of deleted jobs and of jobs that the caller may not see are
    ignored."""
    state = state_of(request)
    secret = cookies.secret_in(request) or ""
    principal = await run_in(Plane.USERS, partial(_principal, state, secret))
    if principal is None or "read" not in principal.verbs:
        return Response(status_code=401, headers=security.HEADERS)
    state.rate_limits.check(principal)
    if request.method == "HEAD":
        return Response(media_type=_TYPE, headers=security.HEADERS)
    topics = request.query_params.get("watch", "").split(",")[:MAX_TOPICS]
    positions = dict(map(_position, filter(None, topics)))
    wants_list = positions.pop(LIST, None) is not None
    known = await run_in(Plane.USERS, partial(_known, state, principal, list(positions)))
    feeds = [state.hub.sse(principal.use, name, positions[name]) for name in known]
    if wants_list:
        feeds.append(request.app.state.portal_rows.follow(request, principal))
    headers = {**security.HEADERS, "x-accel-buffering": "no"}
    pieces = _stream(state, principal.use, secret, feeds)
    return StreamingResponse(pieces, media_type=_TYPE, headers=headers)


def _position(topic: str) -> tuple[str, int]:
    name, _, seq = topic.partition(":")
    return name, int(seq) if seq.isascii() and seq.isdigit() and len(seq) < 10 else 0


def _principal(state: State, secret: str) -> Principal | None:
    with state.database.read() as session:
        signed_in = sessions.authenticate(session, secret)
    return signed_in.principal if signed_in else None


def _known(state: State, principal: Principal, names: Sequence[str]) -> list[str]:
    found = []
    with scope.limit(state.database.read(), principal.project) as session:
        for name in names:
            try:
                found.append(jobs.retrieve(session, name).id)
            except NotFound:
                continue
    return found


async def _stream(
    state: State, use: tuple[str, str], secret: str, feeds: Sequence[AsyncIterator[bytes]]
) -> AsyncIterator[bytes]:
    """Yield the pieces of all feeds as they arrive. Stop when the session ends, its key is revoked,
    or the process ends. Every few seconds, `EventHub.check_keys` ends the streams of keys that are
    no longer valid."""
    queue: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)
    ends = asyncio.Event()
    tasks = [asyncio.create_task(_pump(feed, queue)) for feed in feeds]
    tasks.append(asyncio.create_task(_wake(ends, queue)))
    checked = time.monotonic()
    try:
        with state.hub.using(use, ends):
            yield _HELLO
            while not state.hub.ends(use):
                yield await _next(queue) or _PING
                if time.monotonic() - checked > SESSION_SECONDS:
                    checked = time.monotonic()
                    if await run_in(Plane.USERS, partial(_principal, state, secret)) is None:
                        return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wake(ends: asyncio.Event, queue: asyncio.Queue[bytes]) -> None:
    while True:
        await ends.wait()
        ends.clear()
        await queue.put(b"")


async def _next(queue: asyncio.Queue[bytes]) -> bytes:
    """Return all waiting pieces as one piece.

    If no piece arrives within `PING_SECONDS`, return an empty piece.
    """
    try:
        async with asyncio.timeout(PING_SECONDS):
            pieces = [await queue.get()]
    except TimeoutError:
        return b""
    while not queue.empty():
        pieces.append(queue.get_nowait())
    return b"".join(pieces)


async def _pump(feed: AsyncIterator[bytes], queue: asyncio.Queue[bytes]) -> None:
    async for piece in feed:
        await queue.put(piece)


route = Route("/portal/live", answer)

"""Live updates: who gets them, of which jobs, which rows, and when a stream ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tunesmith_server.api import progress_feed, stream
from tunesmith_server.api.deps import State
from tunesmith_server.api.stream import EventHub
from tunesmith_server.core.principal import Principal
from tunesmith_server.portal import live, rendering
from tunesmith_server.services import keys, sessions

from ..actors import Server
from ..callers import metrics
from ..teams import two_teams
from .browser import Browser
from .page_checks import Document

PING_SECONDS = live.PING_SECONDS


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PING_SECONDS", 0.05)
    monkeypatch.setattr(live, "ROUND_SECONDS", 0.01)
    monkeypatch.setattr(stream, "TAIL_SECONDS", 0.01)
    monkeypatch.setattr(progress_feed, "ROUND_SECONDS", 0.02)
    monkeypatch.setattr(progress_feed, "_REST", 0)


def principal_of(server: Server) -> tuple[Principal, str, str]:
    """Return the user, and the id and the secret of a new session."""
    with server.database.write.begin() as session:
        principal = keys.authenticate(session, server.user.headers["authorization"])
        row, secret = sessions.create(session, principal.key_id)
        return principal, row.id, secret


def with_state(server: Server, act: Callable[[State], Awaitable[None]]) -> None:
    async def run() -> None:
        hub = EventHub(server.database)
        tasks = [asyncio.create_task(one) for one in (hub.run(), hub.progress.run())]
        try:
            async with asyncio.timeout(20):
                await act(replace(server.app.state.tunesmith, hub=hub))
        finally:
            for task in tasks:
                task.cancel()

    asyncio.run(run())


async def until(watching: AsyncIterator[bytes], name: str, count: int) -> list[Any]:  # Any: JSON
    """Return the data of the next `count` messages with this name."""
    found: list[Any] = []
    while len(found) < count:
        for block in (await anext(watching)).decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
            if fields.get("event") == name:
                found.append(json.loads(fields["data"]))
    return found


def test_a_stream_needs_a_session_and_has_only_jobs_of_the_project(server: Server) -> None:
    assert Browser(server).get("/portal/live?watch=list").status_code == 401
    _, own, other = two_teams(server)
    principal, _, _ = principal_of(server)
    state = server.app.state.tunesmith
    asked = [own.job_id, other.job_id, "ftjob-none"]
    assert live._known(state, principal, asked) == [own.job_id]
    assert live._position("ftjob-a:12") == ("ftjob-a", 12)
    assert live._position("ftjob-a:x") == ("ftjob-a", 0)


def test_events_come_once_and_after_the_given_number(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.worker.report(claim, events=[metrics(1, 1, train_loss=2.0)])
    principal, _, secret = principal_of(server)
    head = server.user.json(f"/v1/fine_tuning/jobs/{job_id}/events")["data"][0]["seq"]

    async def act(state: State) -> None:
        for after in (0, head - 1):
            feeds = [state.hub.sse(principal.use, job_id, after)]
            watching = live._stream(state, principal.use, secret, feeds)
            assert await until(watching, "hello", 1) == [{}]
            found = await until(watching, "event", head - after)
            assert [item["seq"] for item in found] == list(range(after + 1, head + 1))
            await until(watching, "ping", 1)
            await watching.aclose()  # type: ignore[attr-defined]  # an async generator has it

    with_state(server, act)


def test_a_changed_row_is_rendered_for_all_watchers(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = server.create_job(server.good_file(), suffix="first")
    claim = server.worker.claim()
    principal, _, secret = principal_of(server)
    rendered: list[str] = []
    render = rendering.render

    def counted(name: str, **context: Any) -> str:
        rendered.append(name)
        return render(name, **context)

    monkeypatch.setattr(rendering, "render", counted)

    async def act(state: State) -> None:
        app = SimpleNamespace(state=SimpleNamespace(tunesmith=state, portal_paths=frozenset()))
        request, rows = SimpleNamespace(app=app), live.Rows()
        watching = [
            live._stream(state, principal.use, secret, [rows.follow(request, principal)])  # type: ignore[arg-type]  # only `app` is read
            for _ in range(2)
        ]
        for one in watching:
            await until(one, "ping", 3)  # the first look has been taken
        server.worker.report(claim, events=[metrics(1, 3, train_loss=0.5, total_steps=10)])
        for one in watching:
            [row] = await until(one, "row", 1)
            assert (row["id"], row["state"]) == (job_id, "running")
            document = Document(f"<table>{row['html']}</table>")
            assert "3/10" in document.all("tr")[0].text
        assert rendered == ["_job_row.html"]
        for one in watching:
            await one.aclose()  # type: ignore[attr-defined]  # an async generator has it
        assert rows._feeds == {}

    with_state(server, act)


def test_a_stream_ends_with_its_session_and_with_the_process(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SESSION_SECONDS", 0.0)
    principal, session_id, secret = principal_of(server)

    async def act(state: State) -> None:
        watching = live._stream(state, principal.use, secret, [])
        await until(watching, "ping", 2)
        with server.database.write.begin() as session:
            sessions.end(session, session_id)
        with pytest.raises(StopAsyncIteration):
            await until(watching, "ping", 5)
        _, _, fresh = principal_of(server)
        watching = live._stream(state, principal.use, fresh, [])
        await until(watching, "ping", 1)
        state.hub.close()
        with pytest.raises(StopAsyncIteration):
            await until(watching, "ping", 5)

    with_state(server, act)


def test_a_stream_ends_within_a_minute_of_the_revocation_of_its_key(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert live.SESSION_SECONDS + PING_SECONDS <= 60
    monkeypatch.setattr(live, "SESSION_SECONDS", 0.0)
    principal, _, secret = principal_of(server)

    async def act(state: State) -> None:
        watching = live._stream(state, principal.use, secret, [])
        await until(watching, "ping", 2)
        with server.database.write.begin() as session:
            keys.revoke(session, principal.key_id)
        with pytest.raises(StopAsyncIteration):
            await until(watching, "ping", 5)

    with_state(server, act)

"""One stream for many jobs: exact after each broken connection, of one project, cheap for many."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tunesmith_schema.progress import JobProgress
from tunesmith_server.api import many_jobs, progress_feed, stream, watches
from tunesmith_server.api.stream import EventHub
from tunesmith_server.models import DEFAULT_PROJECT
from tunesmith_server.services import keys
from tunesmith_server.services.training import job_progress

from .actors import Server
from .callers import event, metrics
from .teams import caller, two_teams

PATH = "/v1/fine_tuning/events?stream=true&jobs="
KEY = "key-of-nobody"


@pytest.fixture(autouse=True)
def _quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "TAIL_SECONDS", 0.01)
    monkeypatch.setattr(progress_feed, "ROUND_SECONDS", 0.02)
    monkeypatch.setattr(progress_feed, "_REST", 0)


@dataclass(frozen=True)
class Message:
    event: str
    data: Any  # Any: JSON
    id: str


def messages(text: str) -> list[Message]:
    """Messages of an SSE text whose last message may be cut off."""
    found = []
    for block in text.split("\n\n")[:-1]:
        if not block.startswith(":"):
            fields = dict(line.split(": ", 1) for line in block.split("\n"))
            found.append(Message(fields["event"], json.loads(fields["data"]), fields.get("id", "")))
    return found


def ended_jobs(server: Server, count: int) -> list[str]:
    job_ids = []
    for number in range(count):
        job_ids.append(server.create_job(server.good_file()))
        claim = server.worker.claim()
        server.worker.report(claim, events=[event(n, f"{number}.{n}") for n in range(1, 4)])
        server.worker.succeed(claim)
    return job_ids


def with_hub(server: Server, act: Callable[[EventHub], Awaitable[None]]) -> None:
    async def run() -> None:
        hub = EventHub(server.database)
        tasks = [asyncio.create_task(one) for one in (hub.run(), hub.progress.run())]
        try:
            async with asyncio.timeout(30):
                await act(hub)
        finally:
            for task in tasks:
                task.cancel()

    asyncio.run(run())


def watch(
    hub: EventHub, jobs: str, project_id: str = DEFAULT_PROJECT, **options: Any
) -> AsyncIterator[bytes]:
    position = watches.parse(jobs)
    return many_jobs.sse(hub, use=(KEY, project_id), position=position, **options)


async def until(watching: AsyncIterator[bytes], accept: Callable[[Message], bool]) -> list[Message]:
    """Messages up to the first one that `accept` returns True for."""
    found: list[Message] = []
    while not any(accept(message) for message in found):
        found += messages((await anext(watching)).decode())
    return found


def test_a_reader_cut_off_anywhere_gets_each_message_once(server: Server) -> None:
    job_ids = ended_jobs(server, 3)
    address = PATH + ",".join(job_ids)
    whole = server.user.get(address).text
    every = messages(whole)
    assert [one.event for one in every].count("done") == 3
    assert len({one.id for one in every}) == len(every)
    draw = random.Random(0)
    for _ in range(20):
        got, position = list[Message](), ""
        while text := server.user.get(address, headers={"last-event-id": position}).text:
            part = messages(text[: draw.randint(0, len(text) * 3 // 2)])
            got += part
            position = part[-1].id if part else position
        assert got == every
    for index, message in enumerate(every):  # the id is an address too
        assert messages(server.user.get(PATH + message.id).text) == every[index + 1 :]


def test_what_is_not_a_position_is_refused_or_left_out(server: Server) -> None:
    [job_id] = ended_jobs(server, 1)
    for jobs in ("", "x", f"{job_id}:-1", ",", "*:x", ",".join(f"ftjob-{n}" for n in range(21))):
        reply = server.user.get(PATH + jobs)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "jobs"), jobs
    assert server.user.get("/v1/fine_tuning/events?jobs=*").status_code == 400
    whole = server.user.get(PATH + job_id).text
    for odd in ("1", "ftjob-other:3", f"{job_id}:x", "*:5", "9" * 200):
        assert server.user.get(PATH + job_id, headers={"last-event-id": odd}).text == whole


def test_another_projects_job_is_unknown(server: Server) -> None:
    _, own, other = two_teams(server)
    reader = caller(server, "viewer", own.project_id)
    assert reader.get(f"{PATH}{own.job_id}").status_code == 200
    for jobs in (other.job_id, f"{own.job_id},{other.job_id}", f"*,{other.job_id}:3"):
        assert reader.get(PATH + jobs).status_code == 404


def test_the_progress_of_all_jobs_is_of_one_project(server: Server) -> None:
    _, own, other = two_teams(server)

    async def act(hub: EventHub) -> None:
        seen = {}
        for project in (own.project_id, other.project_id):
            watching = watch(hub, "*:1", project)
            seen[project] = {m.data["id"] for m in messages((await anext(watching)).decode())}
        assert seen == {own.project_id: {own.job_id}, other.project_id: {other.job_id}}

    with_hub(server, act)


def test_changes_of_all_jobs_come_and_a_returning_reader_misses_none(server: Server) -> None:
    waiting, running = (server.create_job(server.good_file()) for _ in range(2))

    async def act(hub: EventHub) -> None:
        def ended(job_id: str, state: str) -> Callable[[Message], bool]:
            return lambda one: (one.data["id"], one.data["state"]) == (job_id, state)

        watching = watch(hub, "*")
        first = await until(watching, lambda one: bool(one.id))
        assert {one.data["id"]: one.data["state"] for one in first} == {
            waiting: "queued",
            running: "queued",
        }
        claim = await asyncio.to_thread(server.worker.claim)
        job_id = claim["job_id"]
        news = [metrics(1, 7, train_loss=0.5, total_steps=9)]
        await asyncio.to_thread(server.worker.report, claim, events=news)
        [*_, last] = await until(watching, lambda one: one.data["step"] == 7)
        assert last.data["last_metrics"] == {"train_loss": 0.5}
        assert (last.data["id"], last.data["total_steps"]) == (job_id, 9)
        await asyncio.to_thread(server.worker.succeed, claim)
        await until(watching, ended(job_id, "succeeded"))
        await watching.aclose()  # type: ignore[attr-defined]  # a generator, typed as an iterator
        [rest] = {waiting, running} - {job_id}
        await asyncio.to_thread(server.ask, rest, "cancel")
        again = await until(watch(hub, last.id), ended(rest, "cancelled"))
        assert {one.data["id"] for one in again} == {job_id, rest}
        assert again[-1].id.startswith("*:")

    with_hub(server, act)


def test_a_revoked_key_ends_the_stream_of_many_jobs(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "KEY_SECONDS", 0.05)
    with server.database.write.begin() as session:
        key_id = keys.create(session, "eve")[0].id
    job_id = server.create_job(server.good_file())

    async def act(hub: EventHub) -> None:
        checks = asyncio.create_task(hub.check_keys())
        position = watches.parse(f"{job_id},*")
        watching = many_jobs.sse(hub, use=(key_id, DEFAULT_PROJECT), position=position)
        await until(watching, lambda one: one.event == "job")
        with server.database.write.begin() as session:
            keys.revoke(session, key_id)
        assert [piece async for piece in watching] == []
        assert not hub._feeds
        assert not hub.progress._feeds
        checks.cancel()

    with_hub(server, act)


def test_two_hundred_watchers_cost_one_poll_and_one_rendering(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    job_id, rendered, polls = claim["job_id"], [], []
    heads = job_progress.heads

    def render(progress: JobProgress) -> bytes:
        rendered.append(progress.step)
        return progress.model_dump_json().encode()

    def counted(*given: Any) -> Any:  # Any: passed on
        polls.append(time.monotonic())
        return heads(*given)

    monkeypatch.setattr(job_progress, "heads", counted)
    monkeypatch.setattr(progress_feed, "ROUND_SECONDS", 0.2)

    async def act(hub: EventHub) -> None:
        watching = [watch(hub, f"{job_id},*", render=render) for _ in range(200)]

        async def reach(one: AsyncIterator[bytes], step: int) -> None:
            left = {"event", "job"}
            while left:
                for message in messages((await anext(one)).decode()):
                    at = message.data["step" if message.event == "job" else "data"]
                    if at == step or (isinstance(at, dict) and at.get("step") == step):
                        left.discard(message.event)

        for step in (1, 2, 3):
            news = [metrics(step, step, train_loss=1.0)]
            await asyncio.to_thread(server.worker.report, claim, events=news)
            started, polled = time.process_time(), len(polls)
            await asyncio.gather(*(reach(one, step) for one in watching))
            spent = time.process_time() - started
            assert len(polls) - polled <= 5
        assert rendered == sorted(set(rendered))
        assert spent < 0.4, "2 ms for each watcher of a job and the list"

    with_hub(server, act)

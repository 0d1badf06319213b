"""Each request is one transaction; requests that wait for a writer do not block its commit."""

from __future__ import annotations

import inspect
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from sqlalchemy import text

from tunesmith_server.api import adapters, events, files, health, internal, jobs, models, uploads
from tunesmith_server.api.deps import TransactionRoute, get_reader, get_session
from tunesmith_server.core.database import Database

from .actors import Server
from .live import listening

WRITERS = 60
"""The writers outnumber FastAPI's 40 threads for routes."""


def calls(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for below in dependant.dependencies:
        yield from calls(below)


def test_every_route_with_a_session_ends_its_transaction() -> None:
    routers = (adapters, events, files, health, internal, jobs, models, uploads)
    routes = [route for module in routers for route in module.router.routes]
    with_session = [
        route
        for route in routes
        if isinstance(route, APIRoute) and {get_session, get_reader} & set(calls(route.dependant))
    ]
    assert len(with_session) > 20
    assert [route for route in with_session if not isinstance(route, TransactionRoute)] == []
    # The transaction of an `async def` route is never committed: its writes would be lost.
    own = [(route, inspect.unwrap(route.endpoint)) for route in with_session]
    assert [route for route, endpoint in own if inspect.iscoroutinefunction(endpoint)] == []


def test_more_writers_than_threads_get_through_once_the_way_is_free(server: Server) -> None:
    file_id = server.good_file()
    body = {"model": "tiny-llama", "training_file": file_id}
    headers = dict(server.user.headers)
    with listening(server.app) as url, ThreadPoolExecutor(WRITERS) as pool:

        def create(_: int) -> int:
            reply = httpx.post(f"{url}/v1/fine_tuning/jobs", json=body, headers=headers, timeout=60)
            return reply.status_code

        with server.database.write.begin() as session:
            session.execute(text("UPDATE jobs SET phase = 'held up'"))
            replies = [pool.submit(create, number) for number in range(WRITERS)]
            time.sleep(1)
        freed = time.monotonic()
        assert {reply.result() for reply in replies} == {200}
        assert time.monotonic() - freed < 10
    assert len(server.user.json("/v1/fine_tuning/jobs", params={"limit": 100})["data"]) == WRITERS


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("broken", ["do_execute", "do_commit"])
def test_a_writer_that_failed_holds_up_nobody(
    server: Server, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    file_id = server.good_file()

    def refuse(*given: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(server.database.engine.dialect, broken, refuse)
    assert server.create_reply(file_id).status_code == 500
    monkeypatch.undo()
    began = time.monotonic()
    assert server.create_reply(file_id).status_code == 200
    assert time.monotonic() - began < 5


def test_a_connection_that_outlives_the_database_is_closed(database_url: str) -> None:
    """At shutdown, a thread may still read. Its connection returns to a pool that is gone."""
    database = Database(database_url)
    with database.read.begin() as session:
        session.execute(text("SELECT 1"))
        raw = session.connection().connection.dbapi_connection
        assert raw is not None
        database.dispose()
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        raw.cursor()

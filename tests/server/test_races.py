"""Concurrent transactions: one of the two sees the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from sqlalchemy import text

from tunesmith_schema import JobCreate
from tunesmith_server.core.database import Database
from tunesmith_server.services import job_create

from ..stacks import PostgreSQL
from .actors import Server

T = TypeVar("T")


def while_a_job_is_made(server: Server, file_id: str, act: Callable[[], T]) -> tuple[str, T]:
    """Run `act` while a transaction that has inserted a job is about to commit."""
    body = JobCreate(model="tiny-llama", training_file=file_id)
    with ThreadPoolExecutor(1) as pool:
        with server.database.write.begin() as session:
            by = job_create.Requester(owner="key-1")
            job, _ = job_create.create(session, server.settings, server.wake_ups, body, by)
            acting = pool.submit(act)
            time.sleep(0.2)
        return job.id, acting.result(timeout=20)


def test_a_job_made_while_its_file_is_validated_is_queued(server: Server) -> None:
    file_id = server.upload()
    job_id, _ = while_a_job_is_made(server, file_id, lambda: server.validate(file_id))
    assert server.job(job_id)["status"] == "queued"


def test_a_file_cannot_be_deleted_while_a_job_on_it_is_made(server: Server) -> None:
    file_id = server.good_file()
    _, reply = while_a_job_is_made(
        server, file_id, lambda: server.user.delete(f"/v1/files/{file_id}")
    )
    assert reply.status_code == 409


def test_an_answer_leaves_after_the_commit(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    file_id = server.good_file()

    def refuse(connection: object) -> None:
        raise RuntimeError("disk full")

    monkeypatch.setattr(server.database.engine.dialect, "do_commit", refuse)
    reply = server.create_reply(file_id)
    assert reply.status_code == 500, "or a caller would wait for a job that was never stored"
    monkeypatch.undo()
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []


def test_readers_do_not_wait_for_a_writer(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    with server.database.write.begin() as session:
        session.execute(text("UPDATE jobs SET phase = 'half done'"))
        started = time.monotonic()
        assert server.job(job_id)["phase"] is None
        assert time.monotonic() - started < 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_sqlite_keeps_a_write_ahead_log_and_checks_references(database_url: str) -> None:
    database = Database(database_url)
    with database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert session.scalar(text("PRAGMA foreign_keys")) == 1
        assert session.scalar(text("PRAGMA busy_timeout")) == 15000
    database.dispose()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_postgresql_that_hung_up_on_everybody_is_connected_again(
    server: Server, postgresql: PostgreSQL
) -> None:
    job_id = server.create_job(server.good_file())
    assert postgresql.hang_up(server.settings.database_url) >= 1
    assert server.job(job_id)["state"] == "queued"
    assert server.worker.claim()["job_id"] == job_id

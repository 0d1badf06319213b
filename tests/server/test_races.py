"""Concurrent transactions: one of the two sees the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
from sqlalchemy import text

from tunesmith_schema import JobCreate, JobFork, JobState
from tunesmith_server.core.database import Database
from tunesmith_server.services.data import files
from tunesmith_server.services.leasing import resume_points
from tunesmith_server.services.training import job_create, job_fork

from ..stacks import PostgreSQL
from .actors import Server

T = TypeVar("T")


def while_a_job_is_made(server: Server, file_id: str, act: Callable[[], T]) -> tuple[str, T]:
    """Run `act` while a transaction that has inserted a job is about to commit."""
    body = JobCreate(model="tiny-llama", training_file=file_id)
    with ThreadPoolExecutor(1) as pool:
        with server.user_session() as session, session.begin():
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


def test_a_file_that_expires_while_a_job_on_it_is_made_stays(server: Server) -> None:
    file_id = server.good_file()
    with server.database.write.begin() as session:
        session.execute(text("UPDATE files SET expires_at = 1"))
    job_id, _ = while_a_job_is_made(server, file_id, server.janitor().round)
    assert server.user.get(f"/v1/files/{file_id}").status_code == 200
    server.worker.hello()
    assert server.worker.claim()["job_id"] == job_id


def test_a_job_on_a_file_that_is_being_deleted_is_refused(server: Server) -> None:
    """The janitor has deleted the row but not committed; the create request waits."""
    file_id = server.good_file()
    with server.database.write.begin() as session:
        session.execute(text("UPDATE files SET expires_at = 1"))
    with ThreadPoolExecutor(1) as pool:
        with server.database.write.begin() as session:
            files.delete_expired(session)
            reply = pool.submit(server.create_reply, file_id)
            time.sleep(0.2)
        assert reply.result(timeout=20).json()["error"]["code"] == "not_found"
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.CANCELLED])
def test_a_resume_point_that_a_new_fork_starts_from_is_not_pruned(
    server: Server, job_in: Callable[[JobState], str], end: JobState
) -> None:
    parent = job_in(end)
    server.add_resume_points(parent, 10)
    server.change_job(parent, finished_at=1.0)
    with ThreadPoolExecutor(1) as pool:
        with server.user_session() as session, session.begin():
            by = job_create.Requester(owner="key-1")
            job_fork.fork(session, server.settings, server.wake_ups, parent, JobFork(), by)
            pruning = pool.submit(server.janitor().round)
            time.sleep(0.2)
        pruning.result(timeout=20)
    server.worker.hello()
    claim = server.worker.claim()
    assert [point["step"] for point in claim["resume_points"]] == [10]


def test_a_fork_of_a_resume_point_that_is_being_pruned_is_refused(
    server: Server, job_in: Callable[[JobState], str]
) -> None:
    parent = job_in(JobState.SUCCEEDED)
    server.add_resume_points(parent, 10)
    with ThreadPoolExecutor(1) as pool:
        with server.database.write.begin() as session:
            resume_points.drop_unneeded(session, server.settings)
            reply = pool.submit(server.user.post, f"/v1/fine_tuning/jobs/{parent}/fork")
            time.sleep(0.2)
        assert reply.result(timeout=20).json()["error"]["code"] == "not_forkable"


def test_weights_that_a_new_job_starts_from_are_not_deleted(server: Server) -> None:
    """A deletion of the tuned model, and a job with the model as its base."""
    server.create_job(server.good_file(), recipe={"tuning": "full"})
    claim = server.worker.claim()
    server.worker.succeed(claim, "full")
    name = server.job(claim["job_id"])["fine_tuned_model"]
    body = JobCreate(model=name, training_file=server.good_file())
    with ThreadPoolExecutor(1) as pool:
        with server.user_session() as session, session.begin():
            by = job_create.Requester(owner="key-1")
            job_create.create(session, server.settings, server.wake_ups, body, by)
            deleting = pool.submit(server.user.delete, f"/v1/models/{name}")
            time.sleep(0.2)
        assert deleting.result(timeout=20).status_code == 400
    server.worker.hello()
    assert server.worker.claim()["base_files"]

"""Wake-ups: real Celery messages, sent only after the commit; their failure fails no request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tunesmith_schema import JobState
from tunesmith_schema.queue import (
    LIGHT_QUEUE,
    TRAIN_QUEUE,
    TRAIN_TASK,
    VALIDATE_FILE_TASK,
    celery_broker,
)
from tunesmith_server.core.database import Database
from tunesmith_server.core.queue import WakeUps
from tunesmith_server.models import DEFAULT_PROJECT, JobRow

from .actors import FakeWakeUps, Server


@pytest.fixture(params=["memory", "filesystem", "redis"])
def broker_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        for queue in (TRAIN_QUEUE, LIGHT_QUEUE):
            received(url, queue)  # messages of other tests
        return url
    (tmp_path / "control").mkdir()
    return f"filesystem://{tmp_path}" if request.param == "filesystem" else "memory://"


@pytest.fixture
def sender(broker_url: str) -> Iterator[WakeUps]:
    for queue in (TRAIN_QUEUE, LIGHT_QUEUE):
        while received(broker_url, queue):  # messages of earlier tests in this process
            pass
    wake_ups = WakeUps(broker_url)
    yield wake_ups
    wake_ups.close()


def received(broker_url: str, queue: str) -> list[tuple[str, list[str]]]:
    """(task, arguments) of the waiting messages."""
    settings = celery_broker(broker_url)
    found = []
    with kombu.Connection(
        settings["broker_url"],
        transport=settings.get("broker_transport"),
        transport_options=settings["broker_transport_options"],
    ) as connection:
        waiting = connection.SimpleQueue(queue)
        for _ in range(2):
            try:
                message = waiting.get(timeout=0.2)
            except waiting.Empty:
                break
            found.append((message.headers["task"], message.payload[0]))
            message.ack()
        waiting.close()
    return found


def test_each_task_goes_to_its_queue(sender: WakeUps, broker_url: str) -> None:
    sender.send(TRAIN_TASK, "ftjob-1")
    sender.send(VALIDATE_FILE_TASK, "file-1")
    assert received(broker_url, TRAIN_QUEUE) == [(TRAIN_TASK, ["ftjob-1"])]
    assert received(broker_url, LIGHT_QUEUE) == [(VALIDATE_FILE_TASK, ["file-1"])]


def test_a_message_leaves_after_the_commit(database_url: str) -> None:
    database, wake_ups = Database(database_url), FakeWakeUps()
    with database.write.begin() as session:
        wake_ups.send_after_commit(session, TRAIN_TASK, "ftjob-1")
        wake_ups.send_after_commit(session, TRAIN_TASK, "ftjob-2")
        assert wake_ups.sent == []
    assert wake_ups.sent == [(TRAIN_TASK, "ftjob-1"), (TRAIN_TASK, "ftjob-2")]
    database.dispose()


def test_a_rollback_drops_the_message(database_url: str) -> None:
    database, wake_ups = Database(database_url), FakeWakeUps()
    session = database.write()
    wake_ups.send_after_commit(session, TRAIN_TASK, "ftjob-1")
    session.execute(text("SELECT 1"))
    session.rollback()
    session.close()
    assert wake_ups.sent == []
    database.dispose()


def test_a_savepoint_sends_no_message(database_url: str) -> None:
    database, wake_ups = Database(database_url), FakeWakeUps()
    with database.write.begin() as session:
        wake_ups.send_after_commit(session, TRAIN_TASK, "before")
        with session.begin_nested():
            wake_ups.send_after_commit(session, TRAIN_TASK, "inside")
            with session.begin_nested():
                wake_ups.send_after_commit(session, TRAIN_TASK, "innermost")
        assert wake_ups.sent == []
    assert [job_id for _, job_id in wake_ups.sent] == ["before", "inside", "innermost"]
    database.dispose()


@pytest.mark.parametrize("undone", ["outer", "inner"])
def test_a_savepoint_that_is_undone_drops_its_messages(database_url: str, undone: str) -> None:
    database, wake_ups = Database(database_url), FakeWakeUps()
    with database.write.begin() as session:
        wake_ups.send_after_commit(session, TRAIN_TASK, "before")
        outer = session.begin_nested()
        wake_ups.send_after_commit(session, TRAIN_TASK, "outer")
        inner = session.begin_nested()
        wake_ups.send_after_commit(session, TRAIN_TASK, "inner")
        if undone == "inner":
            inner.rollback()
            outer.commit()
        else:
            inner.commit()
            outer.rollback()
        wake_ups.send_after_commit(session, TRAIN_TASK, "after")
    kept = ["before", "after"] if undone == "outer" else ["before", "outer", "after"]
    assert [job_id for _, job_id in wake_ups.sent] == kept
    database.dispose()


def test_a_failed_flush_in_a_savepoint_keeps_earlier_messages(database_url: str) -> None:
    database, wake_ups = Database(database_url), FakeWakeUps()

    def fail(session: Session) -> None:
        with session.begin_nested():
            wake_ups.send_after_commit(session, TRAIN_TASK, "inside")
            session.add(JobRow(id="incomplete", project_id=DEFAULT_PROJECT))

    with database.write.begin() as session:
        wake_ups.send_after_commit(session, TRAIN_TASK, "before")
        with pytest.raises(IntegrityError):
            fail(session)
    assert [job_id for _, job_id in wake_ups.sent] == ["before"]
    database.dispose()


def test_each_transaction_of_a_session_sends_its_own_messages(database_url: str) -> None:
    database, wake_ups = Database(database_url), FakeWakeUps()
    with database.write() as session:
        for job_id, end in (("1", session.commit), ("2", session.rollback), ("3", session.commit)):
            session.execute(text("SELECT 1"))
            wake_ups.send_after_commit(session, TRAIN_TASK, job_id)
            end()
    assert [job_id for _, job_id in wake_ups.sent] == ["1", "3"]
    database.dispose()


def test_a_woken_worker_finds_the_job_queued(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = server.create_job(server.upload())
    found: dict[str, str] = {}

    def look(task: str, subject_id: str) -> None:
        if task == TRAIN_TASK:
            with server.database.read() as session:
                found[subject_id] = session.get_one(JobRow, subject_id).state

    monkeypatch.setattr(server.wake_ups, "send", look)
    [file_id] = [file["id"] for file in server.user.json("/v1/files")["data"]]
    server.validate(file_id)
    assert found == {job_id: JobState.QUEUED}


def test_a_refused_request_wakes_nobody(server: Server) -> None:
    server.create_reply(server.good_file(), model="none")
    assert [task for task, _ in server.wake_ups.sent] == [VALIDATE_FILE_TASK]


def test_a_broker_that_is_away_costs_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    wake_ups = WakeUps("redis://127.0.0.1:1/0")
    started = time.monotonic()
    wake_ups.send(TRAIN_TASK, "ftjob-1")
    wake_ups.close()
    assert time.monotonic() - started < 2, "a caller waits for it"
    assert "ftjob-1 not sent" in caplog.text

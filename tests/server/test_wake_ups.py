"""Wake-ups: real Celery messages, sent only after the commit; their failure fails no request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest
from sqlalchemy import text

from tunesmith_schema.queue import (
    LIGHT_QUEUE,
    TRAIN_QUEUE,
    TRAIN_TASK,
    VALIDATE_FILE_TASK,
    broker_transport,
)
from tunesmith_server.core.database import Database
from tunesmith_server.core.queue import WakeUps

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
    wake_ups = WakeUps(broker_url)
    yield wake_ups
    wake_ups.close()


def received(broker_url: str, queue: str) -> list[tuple[str, list[str]]]:
    """(task, arguments) of the waiting messages."""
    url, options = broker_transport(broker_url)
    found = []
    with kombu.Connection(url, transport_options=options) as connection:
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

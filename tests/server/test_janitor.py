"""Janitor: sends lost wake-ups again, sweeps unused content, survives failed rounds."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from sqlalchemy import update

from tunesmith_schema.queue import TRAIN_TASK, VALIDATE_FILE_TASK
from tunesmith_server.janitor import WAKE_AGAIN_SECONDS, Janitor
from tunesmith_server.models import FileRow, JobRow, WorkerRow

from .actors import Server


def let_time_pass(server: Server, seconds: float = WAKE_AGAIN_SECONDS + 1) -> None:
    with server.database.write.begin() as session:
        for table in (JobRow, FileRow):
            session.execute(update(table).values(woken_at=table.woken_at - seconds))
    server.wake_ups.sent.clear()


def test_a_wake_up_that_nobody_followed_is_sent_again(server: Server) -> None:
    unread, read = server.upload(), server.good_file()
    job_id = server.create_job(read)
    let_time_pass(server)
    janitor = server.janitor()
    janitor.round()
    assert set(server.wake_ups.sent) == {(VALIDATE_FILE_TASK, unread), (TRAIN_TASK, job_id)}
    server.wake_ups.sent.clear()
    janitor.round()
    assert server.wake_ups.sent == [], "not before half a minute has passed again"


def test_nobody_is_woken_for_what_is_being_done_or_over(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    server.worker.claim()
    cancelled = server.create_job(file_id)
    server.user.post(f"/v1/fine_tuning/jobs/{cancelled}/cancel")
    let_time_pass(server)
    server.janitor().round()
    assert server.wake_ups.sent == []


def test_a_long_queue_gets_one_wake_up_so_that_messages_do_not_pile_up(server: Server) -> None:
    file_id = server.good_file()
    jobs = [server.create_job(file_id) for _ in range(3)]
    let_time_pass(server)
    server.janitor().round()
    server.janitor().round()
    assert [job_id for _, job_id in server.wake_ups.sent] == jobs[:1]


def test_only_what_nobody_refers_to_is_swept(server: Server) -> None:
    kept, deleted = server.good_file(b"kept\n"), server.upload(b"deleted\n")
    server.create_job(kept)
    claim = server.worker.claim()
    adapter = server.worker.succeed(claim)
    server.create_job(kept)
    server.worker.put_blob(server.worker.claim(), b"half an upload")
    server.user.delete(f"/v1/files/{deleted}")
    janitor = server.janitor()
    assert janitor.sweep() == 0, "a row may soon refer to new content"
    assert janitor.sweep(older_than=timedelta(seconds=-5)) == 2
    assert server.user.get(f"/v1/files/{kept}/content").content == b"kept\n"
    job = server.job(claim["job_id"])
    for name, content in adapter.items():
        path = f"/v1/adapters/{job['adapter_id']}/content/{name}"
        assert server.user.get(path).content == content


def test_a_worker_unseen_for_a_day_is_forgotten(server: Server) -> None:
    hello = {"queue": "train", "host": "h", "device": "cpu", "version": "1", "models": ["old"]}
    server.worker.post("/internal/workers/hello", json={**hello, "worker_id": "w"})
    server.janitor().round()
    assert len(server.user.json("/v1/models")["data"]) == 2
    with server.database.write.begin() as session:
        session.execute(update(WorkerRow).values(last_seen=1.0))
    server.janitor().round()
    assert len(server.user.json("/v1/models")["data"]) == 1


def test_a_failed_round_is_not_the_last(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rounds: list[int] = []

    def fail_first(janitor: Janitor) -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise RuntimeError("database is locked")

    monkeypatch.setattr(Janitor, "round", fail_first)
    server.settings.janitor_seconds = 0.01
    janitor = server.janitor()
    janitor.start()
    deadline = time.monotonic() + 5
    while len(rounds) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    janitor.stop()
    assert len(rounds) >= 3
    assert not janitor.is_alive()
    assert "janitor round failed" in caplog.text

"""Jumps of a host's clock: leases use the database clock, and no job or worker is lost."""

from __future__ import annotations

import sqlite3
import time

import pytest
from sqlalchemy import event

from tunesmith_server.core.database import Database

from .actors import Server

DAY = 24 * 3600.0


def jump(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Jump of this process's clock, not of the database's."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_a_jump_of_the_servers_clock_takes_no_job_from_a_worker(
    server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    jump(monkeypatch, seconds)
    assert server.take_back() == 0
    server.worker.report(claim)
    assert server.take_back() == 0
    assert server.job(job_id)["status"] == "running"
    server.worker.succeed(claim)
    assert server.job(job_id)["status"] == "succeeded"


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_a_silent_worker_is_found_whatever_the_servers_clock_says(
    server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    jump(monkeypatch, seconds)
    server.age_lease(job_id)
    assert server.take_back() == 1
    assert server.job(job_id)["status"] == "queued"


@pytest.mark.parametrize("seconds", [DAY, -DAY])
def test_a_worker_stays_ready_whatever_the_servers_clock_says(
    server: Server, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    assert server.worker.hello().status_code == 200
    jump(monkeypatch, seconds)
    assert server.anonymous.get("/readyz").status_code == 200


def test_a_wake_up_is_sent_again_after_the_clock_was_set_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    unread = server.upload()
    job_id = server.create_job(server.good_file())
    server.wake_ups.sent.clear()
    jump(monkeypatch, -DAY)
    server.janitor().round()
    assert {subject for _, subject in server.wake_ups.sent} == {unread, job_id}


class HostClock:
    """Clock of SQLite (the host's clock), which a test can set forward."""

    def __init__(self, database: Database) -> None:
        self.ahead = 0.0
        event.listen(database.engine, "connect", self._take_over)
        database.dispose()

    def _take_over(self, connection: sqlite3.Connection, record: object) -> None:
        connection.create_function("julianday", 1, lambda _: self._days())

    def _days(self) -> float:
        return (time.time() + self.ahead) / DAY + 2440587.5


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_leap_of_the_databases_clock_leaves_workers_time_to_report(server: Server) -> None:
    clock, janitor = HostClock(server.database), server.janitor()
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    janitor._may_take_back = 0.0  # it started more than one lease ago
    janitor.round()
    clock.ahead = DAY
    janitor.round()
    assert server.job(job_id)["status"] == "running"
    server.worker.report(claim)
    janitor._may_take_back = 0.0  # one lease later
    janitor.round()
    assert server.job(job_id)["status"] == "running"
    server.age_lease(job_id)
    janitor.round()
    assert server.job(job_id)["status"] == "queued", "a silent worker is still detected"

"""Silent workers: their jobs are taken back after one lease, a limited number of times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tunesmith_schema.queue import TRAIN_TASK
from tunesmith_server import janitor as janitor_module

from .actors import Server


def test_a_job_of_a_silent_worker_is_queued_again(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    server.age_lease(job_id)
    server.wake_ups.sent.clear()
    assert server.take_back() == 1
    job = server.job(job_id)
    assert (job["status"], job["phase"]) == ("queued", None)
    assert "attempt 1 failed: queued again" in server.messages(job_id)[-1]
    assert "worker worker-1 stopped reporting" in server.messages(job_id)[-1]
    assert server.worker.claim_reply("worker-2").status_code == 204, "it backs off first"
    server.end_back_off(job_id)
    server.janitor().round()
    assert server.wake_ups.sent == [(TRAIN_TASK, job_id)]
    assert server.worker.claim("worker-2")["attempt"] == 2


def test_a_worker_that_reports_keeps_its_job(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.age_lease(job_id, server.settings.lease_seconds - 30)
    assert server.take_back() == 0
    server.worker.report(claim)
    assert server.take_back() == 0
    assert server.job(job_id)["status"] == "running"


def test_a_job_that_loses_every_worker_fails(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    for _ in range(server.settings.max_losses):
        assert server.job(job_id)["status"] == "queued"
        server.end_back_off(job_id)
        server.worker.claim()
        server.age_lease(job_id)
        server.take_back()
    job = server.job(job_id)
    assert (job["status"], job["attempt"]) == ("failed", 3)
    assert (job["error"]["code"], job["error"]["category"]) == ("worker_lost", "infrastructure")
    assert "3 attempts failed" in job["error"]["message"]
    assert job["error"]["hint"]
    assert server.worker.claim_reply().status_code == 204


def test_taking_back_twice_charges_once(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    server.age_lease(job_id)
    assert (server.take_back(), server.take_back()) == (1, 0)


def test_only_lapsed_leases_are_taken_back(server: Server) -> None:
    file_id = server.good_file()
    lost, kept = server.create_job(file_id), server.create_job(file_id)
    server.worker.claim("worker-1")
    server.worker.claim("worker-2")
    server.age_lease(lost)
    assert server.take_back() == 1
    assert (server.job(lost)["status"], server.job(kept)["status"]) == ("queued", "running")


def test_the_janitor_lets_one_lease_pass_after_its_own_start(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    fake = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: 2e9)
    monkeypatch.setattr(janitor_module, "time", fake)
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    server.age_lease(job_id)
    janitor = server.janitor()
    clock.now += server.settings.lease_seconds - 1
    janitor.round()
    assert server.job(job_id)["status"] == "running", "workers could not report while no API was up"
    clock.now += 2
    janitor.round()
    assert server.job(job_id)["status"] == "queued"

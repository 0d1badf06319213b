"""The time left of a job is estimated from the speed of its steps, without the start-up."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tunesmith_schema import MAX_EVENTS_PER_REPORT
from tunesmith_server.models import JobRow
from tunesmith_server.scheduling import snapshot
from tunesmith_server.services.training import job_progress

from .actors import Server
from .callers import event, metrics

MEASURED = {"measured_at": None, "measured_step": None}


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    """A job that was claimed five minutes ago."""
    server.create_job(server.good_file())
    claim = server.worker.claim()
    server.change_job(claim["job_id"], claimed_at=JobRow.claimed_at - 300)
    return claim


def train(server: Server, claim: dict[str, Any], seq: int, step: int) -> None:
    values = {"train_loss": 1.0, "total_steps": 100}
    server.worker.report(claim, events=[metrics(seq, step, **values)])


def let_pass(server: Server, claim: dict[str, Any], seconds: float) -> None:
    """Pretend that the first measured step was reported this much earlier."""
    server.change_job(claim["job_id"], measured_at=JobRow.measured_at - seconds)


def ends(server: Server, claim: dict[str, Any]) -> list[float | None]:
    """Return the seconds left, as the job, the list, live updates and the queue state them."""
    now, job_id = time.time(), claim["job_id"]
    [listed] = server.user.json("/v1/fine_tuning/jobs")["data"]
    [queued] = server.user.json("/v1/queue")["running"]
    with server.database.read() as session:
        [live] = job_progress.read(session, [job_id])
    job = server.job(job_id)
    found = [job["estimated_finish"], listed["estimated_finish"], live.estimated_finish]
    return [None if at is None else at - now for at in [*found, queued["estimated_end"]]]


def speed(server: Server) -> float | None:
    [running] = server.user.json("/v1/queue")["running"]
    per_second: float | None = running["steps_per_second"]
    return per_second


def test_the_start_up_does_not_count(server: Server, claim: dict[str, Any]) -> None:
    train(server, claim, 1, 1)
    assert ends(server, claim) == [None] * 4, "one step gives no speed"
    assert speed(server) is None
    train(server, claim, 2, 11)
    let_pass(server, claim, 2000)
    assert ends(server, claim) == [pytest.approx(89 * 200, abs=100)] * 4
    assert speed(server) == pytest.approx(0.005, rel=0.1)


@pytest.mark.parametrize("days", [1, -1])
def test_the_clock_of_the_server_does_not_count(
    server: Server, claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    train(server, claim, 1, 1)
    train(server, claim, 2, 11)
    let_pass(server, claim, 2000)
    real, ahead = time.time, days * 86_400
    monkeypatch.setattr(time, "time", lambda: real() + ahead)
    assert ends(server, claim) == [pytest.approx(89 * 200 - ahead, abs=100)] * 4


def test_a_new_attempt_measures_again(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    train(server, claim, 1, 1)
    train(server, claim, 2, 11)
    let_pass(server, claim, 20)
    server.ask(job_id, "pause")
    server.worker.report(claim, outcome={"state": "released"})
    assert server.job(job_id)["estimated_finish"] is None
    server.ask(job_id, "resume")
    second = server.worker.claim()
    assert ends(server, second)[:3] == [None] * 3, "the time of the pause says nothing"
    resumed = event(1, "resumed", kind="resumed", data={"step": 5})
    server.worker.report(second, events=[resumed])
    train(server, second, 2, 6)
    assert ends(server, second)[:3] == [None] * 3
    train(server, second, 3, 11)
    let_pass(server, second, 500)
    assert ends(server, second) == [pytest.approx(89 * 100, abs=100)] * 4


def test_steps_that_are_repeated_in_an_attempt_measure_again(
    server: Server, claim: dict[str, Any]
) -> None:
    train(server, claim, 1, 40)
    let_pass(server, claim, 100)
    resumed = event(2, "resumed", kind="resumed", data={"step": 10})
    server.worker.report(claim, events=[resumed, metrics(3, 11, train_loss=1.0)])
    train(server, claim, 4, 21)
    let_pass(server, claim, 1000)
    assert ends(server, claim) == [pytest.approx(79 * 100, abs=100)] * 4


def test_events_that_waited_on_the_worker_show_no_speed(
    server: Server, claim: dict[str, Any]
) -> None:
    """The API was away, and then 1,000 steps arrive in two reports at once."""
    values = {"train_loss": 1.0, "total_steps": 2000}
    for first in (1, 1 + MAX_EVENTS_PER_REPORT):
        steps = range(first, first + MAX_EVENTS_PER_REPORT)
        server.worker.report(claim, events=[metrics(step, step, **values) for step in steps])
    assert speed(server) is None
    server.worker.report(claim, events=[metrics(1001, 1100, **values)])
    let_pass(server, claim, 200)
    assert ends(server, claim) == [pytest.approx(900 * 2, abs=100)] * 4


def test_before_the_second_step_similar_jobs_give_the_end(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.succeed(claim)
    file_id = server.user.json("/v1/files")["data"][0]["id"]
    server.create_job(file_id)
    again = server.worker.claim()
    server.change_job(again["job_id"], claimed_at=JobRow.claimed_at - 100)
    [running] = server.user.json("/v1/queue")["running"]
    assert running["estimated_end"] - time.time() == pytest.approx(200, abs=10)
    server.change_job(again["job_id"], claimed_at=JobRow.claimed_at - 300)
    [running] = server.user.json("/v1/queue")["running"]
    assert running["estimated_end"] is None, "it has taken longer than similar jobs"


def test_a_job_that_ran_during_an_upgrade_is_measured(
    server: Server, claim: dict[str, Any]
) -> None:
    train(server, claim, 1, 30)
    server.change_job(claim["job_id"], **MEASURED)
    assert ends(server, claim) == [None] * 4
    train(server, claim, 2, 31)
    train(server, claim, 3, 41)
    let_pass(server, claim, 1000)
    assert ends(server, claim) == [pytest.approx(59 * 100, abs=100)] * 4


def test_the_queue_reads_the_measured_step(server: Server, claim: dict[str, Any]) -> None:
    train(server, claim, 1, 7)
    with server.database.read() as session:
        [running] = snapshot.read(session).running
    assert running.measured_step == 7
    assert running.measured_at == pytest.approx(time.time(), abs=30)

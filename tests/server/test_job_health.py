"""Health, last metrics, start and owner of a job, through the API."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy
import sqlalchemy.event

from tunesmith_schema import MAX_EVENTS_PER_REPORT
from tunesmith_server.services.leasing import older_jobs
from tunesmith_server.services.results import job_health

from .actors import Server
from .callers import metrics

JOBS = "/v1/fine_tuning/jobs"


def report_losses(server: Server, claim: dict[str, Any], losses: list[float | None]) -> None:
    events = [metrics(n, n, train_loss=loss) for n, loss in enumerate(losses, start=1)]
    for first in range(0, len(events), MAX_EVENTS_PER_REPORT):
        server.worker.report(claim, events=events[first : first + MAX_EVENTS_PER_REPORT])


def test_a_job_shows_its_health_in_lists_too(server: Server) -> None:
    job_id = server.create_job(server.good_file(), suffix="x")
    new = server.job(job_id)
    assert (new["health"], new["last_metrics"], new["started_at"]) == (None, {}, None)
    assert (new["owner"], new["evaluation"]) == ("ann", None)
    claim = server.worker.claim()
    report_losses(server, claim, [1.6, 19.0, 2.7])
    job = server.job(job_id)
    assert job["health"]["state"] == "diverged"
    assert job["last_metrics"] == {"train_loss": 2.7}
    assert job["started_at"] >= job["created_at"]
    assert server.user.json(JOBS)["data"] == [job]


def test_a_report_shows_the_health_of_its_job(server: Server) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    report_losses(server, claim, [2.0, None, None, None])
    run_report = {
        "attempt": 1, "started_at": 1, "wall_seconds": 1, "bound": {"by": "unknown", "text": "t"},
        "saturation": {"state": "not_measured", "text": "t"},
        "advice": {"rule": "none", "text": "t"},
    }  # fmt: skip
    server.worker.report(claim, run_report=run_report)
    shown = server.user.json(f"{JOBS}/{claim['job_id']}/report")
    assert shown["health"]["text"] == "The training loss became NaN at step 2."


def test_an_ended_job_without_metrics_is_unclear(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    assert server.job(job_id)["health"] == {
        "state": "unclear", "text": "No step has logged a training loss.", "step": 0,
    }  # fmt: skip


def test_a_job_that_never_started_has_no_health(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    assert server.ask(job_id, "cancel")["health"] is None


def test_a_long_run_is_thinned_to_means(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    report_losses(server, claim, [3.0 - n / 500 for n in range(1000)])
    with server.database.read() as session:
        curve = job_health.curves(session, job_id)["train_loss"]
    assert len(curve) <= job_health.MAX_POINTS
    assert curve[-1].step == 1000
    assert curve[-1].value == pytest.approx(1.0, abs=0.02)
    assert server.job(job_id)["health"]["state"] == "learning"


def test_health_is_derived_again_only_after_five_percent_more_steps(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    report_losses(server, claim, [3.0 - n / 500 for n in range(100)])
    read: list[str] = []

    def record(*given: Any) -> None:  # Any: SQLAlchemy's own; the third argument is the statement
        read.extend([given[2]] if "group by" in given[2].lower() else [])

    sqlalchemy.event.listen(server.database.engine, "before_cursor_execute", record)
    try:
        for step in range(101, 112):
            server.worker.report(claim, events=[metrics(step, step, train_loss=2.0)])
    finally:
        sqlalchemy.event.remove(server.database.engine, "before_cursor_execute", record)
    assert len(read) == 2
    assert server.job(job_id)["health"]["step"] == 111


def test_a_health_that_cannot_be_read_breaks_nothing(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, health={"novelty": 1}, last_metrics=[1])
    assert server.job(job_id)["health"] is None
    assert server.user.json(JOBS)["data"][0]["health"] is None
    claim = server.worker.claim()
    report_losses(server, claim, [2.0])
    assert server.job(job_id)["last_metrics"] == {"train_loss": 2.0}


def test_jobs_of_an_earlier_release_get_their_health_in_some_rounds(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(older_jobs, "MAX_JOBS", 2)
    job_ids = []
    for _ in range(3):
        job_ids.append(server.create_job(server.good_file()))
        claim = server.worker.claim()
        report_losses(server, claim, [1.6, 19.0, 2.7])
        server.worker.succeed(claim)
        server.change_job(job_ids[-1], health=sqlalchemy.null())
    never_started = server.create_job(server.good_file())
    cleaner = server.janitor()
    known = []
    for _ in range(3):
        cleaner.round()
        known.append(sum(server.job(job_id)["health"] is not None for job_id in job_ids))
    assert known == [2, 3, 3]
    assert server.job(job_ids[0])["health"]["state"] == "diverged"
    assert server.job(never_started)["health"] is None
    assert cleaner._older_jobs.is_done

"""Metrics of a run that diverges beyond all bounds: reports and the end of the job are stored."""

from __future__ import annotations

import pytest

from tunesmith_server.services.results import health_rules

from .actors import Server
from .callers import metrics

HUGE = 1.7e308
"""Close to the largest float: sums and squares of such values overflow."""


@pytest.mark.parametrize(
    ("name", "signs"), [("train_loss", (1, 1)), ("valid_loss", (1, -1)), ("reward", (-1, -1))]
)
def test_huge_metrics_stop_no_report_and_no_end(
    server: Server, name: str, signs: tuple[int, int]
) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    for report in range(3):
        events = [
            metrics(100 * report + n, 400 + 100 * report + n, **{name: HUGE * signs[n % 2]})
            for n in range(1, 101)
        ]
        server.worker.report(claim, events=events)
    assert server.job(job_id)["step"] == 700
    server.ask(job_id, "cancel")
    assert server.worker.report(claim)["control"] == "cancel"
    server.worker.report(claim, outcome={"state": "cancelled"})
    assert server.job(job_id)["state"] == "cancelled"
    assert server.job(job_id)["health"]["state"]


def test_a_health_that_cannot_be_derived_stops_no_report_and_no_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(curves: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(health_rules, "judge", fail)
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.worker.report(claim, events=[metrics(1, 1, train_loss=2.0)])
    server.worker.succeed(claim)
    job = server.job(job_id)
    assert (job["state"], job["health"], job["step"]) == ("succeeded", None, 3)
    assert job["last_metrics"] == {"train_loss": 2.0}

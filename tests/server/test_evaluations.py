"""Evaluations of results: received with the run report, shown with the job."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from tunesmith_server.models import ReportRow

from .actors import Server
from .test_run_reports import refusal, run_report

EVALUATION: dict[str, Any] = {
    "verdict": "better by 0.31 ± 0.05 nats on 80 rows",
    "outcome": "better",
    "metric": "loss",
    "on": "validation_file",
    "rows": 80,
    "rows_available": 80,
    "base": 1.5,
    "tuned": 1.19,
    "file": "valid.jsonl",
    "models": [{"model": "tuned", "step": 9, "loss": 1.19}, {"model": "base", "loss": 1.5}],
    "answers": [{"row": 3, "prompt": "p", "expected": "e", "answers": {"base": "b", "tuned": "t"}}],
}
SUMMARY = {
    name: EVALUATION[name]
    for name in ("verdict", "outcome", "metric", "on", "rows", "base", "tuned")
}


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def url(claim: dict[str, Any]) -> str:
    return f"/v1/fine_tuning/jobs/{claim['job_id']}"


def test_an_evaluation_is_shown_with_the_job_in_lists_and_by_itself(
    server: Server, claim: dict[str, Any]
) -> None:
    assert server.job(claim["job_id"])["evaluation"] is None
    assert refusal(server, f"{url(claim)}/evaluation") == (404, "no_evaluation")
    server.worker.report(claim, run_report=run_report(9, evaluation=EVALUATION))
    assert server.job(claim["job_id"])["evaluation"] == SUMMARY
    [listed] = server.user.json("/v1/fine_tuning/jobs")["data"]
    assert listed["evaluation"] == SUMMARY
    found = server.user.json(f"{url(claim)}/evaluation")
    assert (found["job_id"], found["attempt"]) == (claim["job_id"], 1)
    assert found["object"] == "fine_tuning.job.evaluation"
    assert {name: found[name] for name in SUMMARY} == SUMMARY
    assert found["answers"][0]["answers"] == {"base": "b", "tuned": "t"}
    assert server.user.json(f"{url(claim)}/report")["evaluation"]["rows"] == 80


def test_the_reason_of_a_missing_evaluation_is_in_the_refusal(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.report(claim, run_report=run_report(9, no_evaluation="MemoryError: no room"))
    answer = server.user.get(f"{url(claim)}/evaluation")
    assert answer.status_code == 404
    message = answer.json()["error"]["message"]
    assert message.endswith("has no evaluation: MemoryError: no room")
    report = server.user.json(f"{url(claim)}/report")
    assert report["no_evaluation"] == "MemoryError: no room"


def test_a_later_report_without_an_evaluation_keeps_the_verdict(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.report(claim, run_report=run_report(9, evaluation=EVALUATION))
    server.worker.report(claim, run_report=run_report(9))
    assert server.job(claim["job_id"])["evaluation"] == SUMMARY


@pytest.mark.parametrize("content", [[], 7, {"evaluation": [1]}, {"evaluation": {"rows": "x"}}])
def test_an_evaluation_in_a_damaged_report_is_refused_by_name(
    server: Server, claim: dict[str, Any], content: Any
) -> None:
    server.worker.report(claim, run_report=run_report(9, evaluation=EVALUATION))
    with server.database.write.begin() as session:
        session.execute(update(ReportRow).values(content=content))
    assert refusal(server, f"{url(claim)}/evaluation") == (404, "unreadable")


def test_an_evaluation_that_cannot_be_read_hides_neither_job_nor_list(
    server: Server, claim: dict[str, Any]
) -> None:
    server.change_job(claim["job_id"], evaluation={"verdict": 3})
    job = server.job(claim["job_id"])
    assert (job["evaluation"], job["error"]) == (None, None)
    [listed] = server.user.json("/v1/fine_tuning/jobs")["data"]
    assert listed["evaluation"] is None

"""Cancelling a job in each of its states."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith_schema import JobState

from .actors import Server
from .callers import event

JobIn = Callable[[JobState], str]


def cancel(server: Server, job_id: str) -> dict[str, object]:
    reply = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    assert reply.status_code == 200, reply.text
    job: dict[str, object] = reply.json()
    return job


@pytest.mark.parametrize("state", [JobState.VALIDATING_FILES, JobState.QUEUED])
def test_a_job_that_nobody_runs_is_cancelled_at_once(
    server: Server, job_in: JobIn, state: JobState
) -> None:
    job_id = job_in(state)
    job = cancel(server, job_id)
    assert (job["status"], job["state"]) == ("cancelled", "cancelled")
    assert job["finished_at"]
    assert server.messages(job_id)[-1] == "cancelled"


def test_a_cancelled_job_never_starts(server: Server, job_in: JobIn) -> None:
    cancel(server, job_in(JobState.QUEUED))
    assert server.worker.claim_reply().status_code == 204


def test_a_job_cancelled_while_its_file_is_read_stays_cancelled(server: Server) -> None:
    file_id = server.upload()
    job_id = server.create_job(file_id)
    cancel(server, job_id)
    server.validate(file_id)
    assert server.job(job_id)["status"] == "cancelled"


def test_a_running_job_is_cancelled_by_its_worker(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    assert server.worker.report(claim)["control"] == "continue"
    job = cancel(server, job_id)
    assert (job["status"], job["cancel_requested"]) == ("running", True)
    assert server.worker.report(claim)["control"] == "cancel"
    server.worker.report(claim, outcome={"state": "cancelled"})
    assert server.job(job_id)["status"] == "cancelled"
    assert server.worker.claim_reply().status_code == 204


def test_cancelling_twice_is_once(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    cancel(server, job_id)
    cancel(server, job_id)
    assert server.messages(job_id).count("cancel requested") == 1
    assert server.job(job_id)["status"] == "running"


def test_a_cancelled_job_may_be_cancelled_again(server: Server, job_in: JobIn) -> None:
    job_id = job_in(JobState.CANCELLED)
    assert cancel(server, job_id)["status"] == "cancelled"
    assert server.messages(job_id).count("cancelled") == 1


@pytest.mark.parametrize("state", [JobState.SUCCEEDED, JobState.FAILED])
def test_a_job_that_ended_cannot_be_cancelled(
    server: Server, job_in: JobIn, state: JobState
) -> None:
    job_id = job_in(state)
    reply = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    assert reply.status_code == 400, "the openai client would retry a 409"
    assert reply.json()["error"]["code"] == "not_cancellable"
    assert server.job(job_id)["state"] == state


def test_a_worker_that_leaves_a_cancelled_job_cancels_it(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    cancel(server, job_id)
    server.worker.report(claim, outcome={"state": "released"})
    assert server.job(job_id)["status"] == "cancelled"


def test_a_worker_lost_with_a_cancelled_job_cancels_it(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    cancel(server, job_id)
    server.age_lease(job_id)
    server.take_back()
    assert server.job(job_id)["status"] == "cancelled"


def test_success_that_comes_before_the_order_counts(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    cancel(server, job_id)
    server.worker.succeed(claim)
    job = server.job(job_id)
    assert (job["status"], job["cancel_requested"]) == ("succeeded", False)


def test_a_cancelled_job_takes_no_more_events(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.worker.report(claim, outcome={"state": "cancelled"})
    before = server.messages(job_id)
    assert server.worker.report_reply(claim, events=[event(1)]).status_code == 409
    assert server.messages(job_id) == before


def test_an_unknown_job_cannot_be_cancelled(server: Server) -> None:
    assert server.user.post("/v1/fine_tuning/jobs/ftjob-none/cancel").status_code == 404

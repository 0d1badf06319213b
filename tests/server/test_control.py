"""Pause, resume and stop: the effect in each state, and the command to the worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tunesmith_schema import TERMINAL, JobState
from tunesmith_schema.queue import TRAIN_TASK

from .actors import Server

JobIn = Callable[[JobState], str]

V, Q, R = JobState.VALIDATING_FILES, JobState.QUEUED, JobState.RUNNING
PAUSING, PAUSED = JobState.PAUSING, JobState.PAUSED

TABLE: dict[tuple[JobState, str], JobState | str] = {
    (V, "pause"): "not_pausable",
    (Q, "pause"): PAUSED,
    (R, "pause"): PAUSING,
    (PAUSING, "pause"): PAUSING,
    (PAUSED, "pause"): PAUSED,
    (V, "resume"): V,
    (Q, "resume"): Q,
    (R, "resume"): R,
    (PAUSING, "resume"): R,
    (PAUSED, "resume"): Q,
    (V, "stop"): "not_stoppable",
    (Q, "stop"): "not_stoppable",
    (R, "stop"): R,
    (PAUSING, "stop"): R,
    (PAUSED, "stop"): "not_stoppable",
    (V, "cancel"): JobState.CANCELLED,
    (Q, "cancel"): JobState.CANCELLED,
    (R, "cancel"): R,
    (PAUSING, "cancel"): PAUSING,
    (PAUSED, "cancel"): JobState.CANCELLED,
    (JobState.CANCELLED, "cancel"): JobState.CANCELLED,
    (JobState.SUCCEEDED, "cancel"): "not_cancellable",
    (JobState.FAILED, "cancel"): "not_cancellable",
    **{
        (state, verb): code
        for state in TERMINAL
        for verb, code in (
            ("pause", "not_pausable"),
            ("resume", "not_resumable"),
            ("stop", "not_stoppable"),
        )
    },
}
"""Result for a job without a resume point: a state, or the code of a refusal."""


@pytest.mark.parametrize("verb", ["pause", "resume", "stop", "cancel"])
def test_every_verb_in_every_state(server: Server, job_in: JobIn, verb: str) -> None:
    for state in JobState:
        job_id = job_in(state)
        expected = TABLE[state, verb]
        path = f"/v1/fine_tuning/jobs/{job_id}/{verb}"
        before = server.messages(job_id)
        first, second = server.user.post(path), server.user.post(path)
        if isinstance(expected, JobState):
            assert first.json()["state"] == second.json()["state"] == expected, (state, first.text)
            assert len(server.messages(job_id)) <= len(before) + 2, "said once"
            assert len(set(server.messages(job_id))) == len(server.messages(job_id)), "said once"
        else:
            assert first.status_code == 400, "the openai client would retry a 409"
            assert first.json()["error"]["code"] == expected
            assert first.json()["error"]["hint"]
            assert server.job(job_id)["state"] == state
            assert server.messages(job_id) == before
        assert second.status_code == first.status_code
        server.change_job(job_id, state=JobState.CANCELLED)  # the next job must be the only one


def test_an_unknown_job_is_not_found(server: Server) -> None:
    for verb in ("pause", "resume", "stop", "cancel", "fork", "retry"):
        reply = server.user.post(f"/v1/fine_tuning/jobs/ftjob-none/{verb}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "not_found")


def test_a_paused_job_is_not_started_until_it_is_resumed(server: Server, job_in: JobIn) -> None:
    job_id = job_in(PAUSED)
    assert server.job(job_id)["status"] == "queued", "OpenAI has no word for it"
    assert server.worker.claim_reply().status_code == 204
    server.janitor().round()
    server.wake_ups.sent.clear()
    server.ask(job_id, "resume")
    assert server.wake_ups.sent == [(TRAIN_TASK, job_id)]
    assert server.worker.claim()["job_id"] == job_id


def test_a_running_job_is_paused_once_its_worker_has_let_go(server: Server, job_in: JobIn) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    assert server.worker.report(claim)["control"] == "continue"
    assert server.ask(job_id, "pause")["status"] == "running"
    assert server.worker.report(claim)["control"] == "pause"
    server.worker.report(claim, outcome={"state": "released"})
    job = server.job(job_id)
    assert (job["state"], job["status"], job["phase"]) == ("paused", "queued", None)
    assert server.messages(job_id)[-2:] == ["pause requested", "released by its worker: paused"]
    assert server.worker.claim_reply().status_code == 204
    server.ask(job_id, "resume")
    assert server.worker.claim()["attempt"] == 2


def test_a_worker_lost_while_pausing_leaves_a_paused_job(server: Server, job_in: JobIn) -> None:
    job_id = job_in(PAUSING)
    server.age_lease(job_id)
    server.take_back()
    assert server.job(job_id)["state"] == "paused"
    assert server.worker.claim_reply().status_code == 204
    server.ask(job_id, "resume")
    assert server.worker.claim()["attempt"] == 2


def test_cancelling_wins_over_pausing(server: Server, job_in: JobIn) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.ask(job_id, "pause")
    server.ask(job_id, "cancel")
    for verb in ("pause", "resume", "stop"):
        reply = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/{verb}")
        assert reply.status_code == 400
        assert "being cancelled" in reply.json()["error"]["message"]
    assert server.worker.report(claim)["control"] == "cancel"
    server.worker.report(claim, outcome={"state": "released"})
    assert server.job(job_id)["state"] == "cancelled"


def test_a_job_that_ends_before_the_order_comes_has_succeeded(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.ask(job_id, "pause")
    server.worker.succeed(claim)
    assert server.job(job_id)["state"] == "succeeded"
    assert server.user.post(f"/v1/fine_tuning/jobs/{job_id}/resume").status_code == 400


def test_a_pause_that_is_called_off_in_time_costs_nothing(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.ask(job_id, "pause")
    server.ask(job_id, "resume")
    assert server.worker.report(claim)["control"] == "continue"
    server.worker.succeed(claim)
    assert server.job(job_id)["attempt"] == 1


def test_a_pause_called_off_too_late_queues_the_job(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.ask(job_id, "pause")
    assert server.worker.report(claim)["control"] == "pause"
    server.ask(job_id, "resume")
    server.wake_ups.sent.clear()
    server.worker.report(claim, outcome={"state": "released"})
    assert server.job(job_id)["state"] == "queued"
    assert server.wake_ups.sent == [(TRAIN_TASK, job_id)]


def test_a_stopped_job_succeeds_at_the_step_it_had_reached(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    job = server.ask(job_id, "stop")
    assert (job["status"], job["stop_requested"]) == ("running", True)
    assert server.messages(job_id).count("stop requested") == 1
    refused = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/pause")
    assert refused.json()["error"]["code"] == "not_pausable"
    assert server.worker.report(claim)["control"] == "stop"
    server.worker.succeed(claim)
    job = server.job(job_id)
    assert (job["state"], job["stop_requested"]) == ("succeeded", True)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.PAUSED])
def test_a_waiting_job_with_a_resume_point_is_taken_up_once_more_to_be_stopped(
    server: Server, job_in: JobIn, state: JobState
) -> None:
    job_id = job_in(state)
    server.add_resume_points(job_id, 7)
    job = server.ask(job_id, "stop")
    assert (job["state"], job["stop_requested"]) == ("queued", True)
    assert server.worker.report(server.worker.claim())["control"] == "stop"


@pytest.mark.parametrize("point", [True, False])
def test_a_stopped_job_given_back_ends_if_nothing_of_it_is_stored(
    server: Server, point: bool
) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.ask(job_id, "stop")
    if point:
        server.add_resume_points(job_id, 7)
    server.worker.report(claim, outcome={"state": "released"})
    job = server.job(job_id)
    assert job["state"] == ("queued" if point else "cancelled")
    assert point or "no resume point to keep" in server.messages(job_id)[-1]

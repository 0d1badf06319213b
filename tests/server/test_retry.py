"""Retry: one new job that continues a failed or cancelled job."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tunesmith_schema import JobState
from tunesmith_server.models import JobRow
from tunesmith_server.services.training import job_fork

from .actors import Server

JobIn = Callable[[JobState], str]
RETRYABLE = (JobState.FAILED, JobState.CANCELLED)


def test_only_what_failed_or_was_cancelled_can_be_retried(server: Server, job_in: JobIn) -> None:
    for state in set(JobState) - set(RETRYABLE):
        job_id = job_in(state)
        reply = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/retry")
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_retryable"), state
        server.change_job(job_id, state=JobState.CANCELLED)  # the next job must be the only one


def test_a_retry_is_a_new_job_and_only_the_same_key_returns_it_again(
    server: Server, job_in: JobIn
) -> None:
    for state in RETRYABLE:
        job_id = job_in(state)
        told = server.messages(job_id)
        path = f"/v1/fine_tuning/jobs/{job_id}/retry"
        key = {"Idempotency-Key": f"key of {state}"}
        reply, again = (server.user.post(path, headers=key) for _ in range(2))
        new = reply.json()
        assert new["id"] == again.json()["id"] != job_id
        assert again.headers["idempotent-replayed"] == "true"
        assert (new["retry_of"], new["forked_from"], new["state"]) == (job_id, None, "queued")
        assert server.messages(new["id"])[0].endswith(f"retry of {job_id}, from step 0")
        assert (server.job(job_id)["state"], server.messages(job_id)) == (state, told)
        others = [
            server.user.post(path),
            server.user.post(path, headers={"Idempotency-Key": f"other of {state}"}),
        ]
        created = {new["id"], *(reply.json()["id"] for reply in others)}
        assert len(created) == 3, "a retry that has failed too must not be the answer"
        for retried in created:
            server.ask(retried, "cancel")
        server.change_job(job_id, state=JobState.SUCCEEDED)


def test_a_key_of_another_job_is_refused(server: Server, job_in: JobIn) -> None:
    key = {"Idempotency-Key": "key"}
    first, second = job_in(JobState.FAILED), job_in(JobState.CANCELLED)
    assert server.user.post(f"/v1/fine_tuning/jobs/{first}/retry", headers=key).is_success
    reply = server.user.post(f"/v1/fine_tuning/jobs/{second}/retry", headers=key)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "idempotency_conflict")


def test_a_retry_has_the_same_body_and_goes_on_from_the_newest_resume_point(
    server: Server,
) -> None:
    old = server.create_job(
        server.good_file(),
        recipe={"lora": {"r": 4}, "learning_rate": 1e-3},
        hyperparameters={"n_epochs": 2},
        suffix="mine",
        metadata={"team": "x"},
    )
    server.add_resume_points(old, 10, 20)
    before = server.ask(old, "cancel")
    new = server.ask(old, "retry")
    for name in (
        "model",
        "training_file",
        "seed",
        "suffix",
        "metadata",
        "recipe",
        "hyperparameters",
    ):
        assert new[name] == before[name], name
    assert (new["forked_from"], new["forked_step"]) == (old, 20)
    assert not changed(server, new["id"])
    server.worker.hello()
    claim = server.worker.claim()
    assert (claim["job_id"], claim["resume_points"][0]["step"]) == (new["id"], 20)
    assert not claim["forked"], "its trainer checks the point as one of its own"


def test_a_retry_of_a_fork_that_stored_nothing_starts_where_the_fork_did(server: Server) -> None:
    parent = server.create_job(server.good_file(), recipe={"learning_rate": 1e-3})
    server.add_resume_points(parent, 10, 20)
    fork = server.ask(parent, "fork", step=10, recipe={"learning_rate": 1e-4})
    assert changed(server, fork["id"])
    server.ask(fork["id"], "cancel")
    new = server.ask(fork["id"], "retry")
    assert (new["forked_from"], new["forked_step"]) == (parent, 10)
    assert new["retry_of"] == fork["id"]
    assert changed(server, new["id"]), "its recipe is not that of the job it starts from"


def changed(server: Server, job_id: str) -> bool:
    with server.database.read() as session:
        job = session.get(JobRow, job_id)
        assert job is not None
        return job_fork.has_changed(session, job)


def test_a_retry_whose_file_is_gone_is_refused(server: Server, job_in: JobIn) -> None:
    job_id = job_in(JobState.FAILED)
    server.user.delete(f"/v1/files/{server.job(job_id)['training_file']}")
    reply = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/retry")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "training_file")


def test_ten_retries_with_one_key_make_one_job(server: Server, job_in: JobIn) -> None:
    job_id = job_in(JobState.FAILED)
    path, key = f"/v1/fine_tuning/jobs/{job_id}/retry", {"Idempotency-Key": "key"}
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _: server.user.post(path, headers=key), range(10)))
    assert {reply.status_code for reply in replies} <= {200, 503}, "503: in progress, ask again"
    assert len({reply.json()["id"] for reply in replies if reply.is_success}) == 1

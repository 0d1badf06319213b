"""Reports: heartbeat, events and outcome; safe to repeat, refused without the lease."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_server.models import JobRow

from .actors import Server
from .callers import event, metrics


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def lease_until(server: Server, claim: dict[str, Any]) -> float:
    with server.database.read() as session:
        until = session.scalar(select(JobRow.lease_until).where(JobRow.id == claim["job_id"]))
    assert until is not None
    return until


def test_a_report_renews_the_lease(server: Server, claim: dict[str, Any]) -> None:
    server.age_lease(claim["job_id"], 100)
    before = lease_until(server, claim)
    reply = server.worker.report(claim, phase="train")
    assert lease_until(server, claim) > before + 90
    assert reply == {
        "control": "continue", "accepted_seq": 0, "lease_seconds": server.settings.lease_seconds,
    }  # fmt: skip
    assert server.job(claim["job_id"])["phase"] == "train"


def test_a_repeated_report_stores_nothing_twice(server: Server, claim: dict[str, Any]) -> None:
    batch = [event(1, "one"), event(2, "two")]
    assert server.worker.report(claim, events=batch)["accepted_seq"] == 2
    stored = server.messages(claim["job_id"])
    assert server.worker.report(claim, events=batch)["accepted_seq"] == 2
    assert server.messages(claim["job_id"]) == stored


def test_of_an_overlapping_report_only_the_new_part_is_stored(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.report(claim, events=[event(1, "one"), event(2, "two")])
    server.worker.report(claim, events=[event(2, "two"), event(3, "three")])
    assert server.messages(claim["job_id"])[-3:] == ["one", "two", "three"]


def test_a_new_attempt_counts_from_one_again(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, events=[event(1, "one")], outcome={"state": "released"})
    again = server.worker.claim()
    assert again["attempt"] == 2
    assert server.worker.report(again, events=[event(1, "uno")])["accepted_seq"] == 1
    assert server.messages(again["job_id"])[-1] == "uno"


@pytest.mark.parametrize("fence", [2, 999])
def test_who_quotes_another_fence_is_fenced_out(
    server: Server, claim: dict[str, Any], fence: int
) -> None:
    reply = server.worker.report_reply({**claim, "fence": fence}, events=[event(1, "ghost")])
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "fenced_out")
    assert reply.headers["x-should-retry"] == "false"
    assert "ghost" not in server.messages(claim["job_id"])


def test_who_lost_the_lease_is_fenced_out(server: Server, claim: dict[str, Any]) -> None:
    server.age_lease(claim["job_id"])
    server.take_back()
    assert server.worker.report_reply(claim, events=[event(1, "ghost")]).status_code == 409
    server.end_back_off(claim["job_id"])
    winner = server.worker.claim("worker-2")
    assert server.worker.report_reply(claim, events=[event(1, "ghost")]).status_code == 409
    assert server.worker.report(winner, events=[event(1, "mine")])["accepted_seq"] == 1
    assert "ghost" not in server.messages(claim["job_id"])


@pytest.mark.parametrize("losses", [0, 2])
def test_an_outcome_after_the_lease_was_lost_is_not_taken_for_a_repetition(
    server: Server, claim: dict[str, Any], losses: int
) -> None:
    outcome = {"state": "succeeded", "files": server.worker.store(claim, {"a.txt": b"abc"})}
    server.change_job(claim["job_id"], losses=losses)
    server.age_lease(claim["job_id"])
    server.take_back()
    reply = server.worker.report_reply(claim, outcome=outcome)
    assert reply.status_code == 409, "or the worker would believe that its work is stored"
    assert server.job(claim["job_id"])["fine_tuned_model"] is None


def test_a_success_whose_content_the_store_has_lost_waits_for_another_upload(
    server: Server, claim: dict[str, Any]
) -> None:
    files = server.worker.store(claim, {"a.txt": b"abc"})
    outcome = {"state": "succeeded", "files": files}
    server.storage.delete([files[0]["sha256"]])
    reply = server.worker.report_reply(claim, events=[event(1, "done")], outcome=outcome)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "content_missing")
    assert server.job(claim["job_id"])["state"] == "running"
    server.worker.store(claim, {"a.txt": b"abc"})
    server.worker.report(claim, events=[event(1, "done")], outcome=outcome)
    assert server.job(claim["job_id"])["state"] == "succeeded"


def test_a_success_whose_stored_content_has_another_size_is_refused(
    server: Server, claim: dict[str, Any]
) -> None:
    [file] = server.worker.store(claim, {"a.txt": b"abc"})
    outcome = {"state": "succeeded", "files": [{**file, "bytes": 4}]}
    reply = server.worker.report_reply(claim, outcome=outcome)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "content_missing")
    assert server.job(claim["job_id"])["state"] == "running"


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "released"])
def test_a_final_report_may_be_repeated(server: Server, claim: dict[str, Any], state: str) -> None:
    files = server.worker.store(claim, {"a.safetensors": b"abc"}) if state == "succeeded" else []
    report = {"events": [event(1, "last words")], "outcome": {"state": state, "files": files}}
    first = server.worker.report(claim, **report)

    def lasting() -> dict[str, Any]:
        """Return the job without values that are counted from now."""
        job: dict[str, Any] = server.job(claim["job_id"])
        reason = job["waiting_because"] and job["waiting_because"]["code"]
        return job | {"estimated_start": None, "waiting_because": reason}

    job, said = lasting(), server.messages(claim["job_id"])
    assert server.worker.report(claim, **report)["accepted_seq"] == first["accepted_seq"] == 1
    assert lasting() == job
    assert server.messages(claim["job_id"]) == said


def test_success_names_the_model_and_the_adapter(server: Server, claim: dict[str, Any]) -> None:
    server.worker.succeed(claim)
    job = server.job(claim["job_id"])
    assert job["status"] == "succeeded"
    assert job["fine_tuned_model"].startswith("ft:tiny-llama:default::")
    assert job["adapter_id"].startswith("adp-")
    assert (job["step"], job["trained_tokens"], job["phase"]) == (3, 30, None)
    assert job["finished_at"] >= job["created_at"]
    assert job["error"] is None


def test_a_failure_keeps_its_reason(server: Server, claim: dict[str, Any]) -> None:
    failure = {
        "category": "out_of_memory", "code": "out_of_memory",
        "message": "out of memory at batch size 8", "hint": "try 4", "param": None,
    }  # fmt: skip
    server.worker.report(claim, outcome={"state": "failed", "error": failure})
    job = server.job(claim["job_id"])
    assert (job["status"], job["error"]) == ("failed", failure)
    assert server.messages(claim["job_id"])[-1] == "failed: out of memory at batch size 8"


def test_a_failure_without_a_reason_still_has_a_code(server: Server, claim: dict[str, Any]) -> None:
    server.settings.max_losses = 1
    server.worker.report(claim, outcome={"state": "failed"})
    assert server.job(claim["job_id"])["error"]["code"] == "trainer_crashed"


def test_a_released_job_is_queued_again_and_nothing_is_charged(
    server: Server, claim: dict[str, Any]
) -> None:
    for _ in range(server.settings.max_losses + 2):
        server.worker.report(claim, outcome={"state": "released"})
        assert server.job(claim["job_id"])["status"] == "queued"
        claim = server.worker.claim()
    with server.database.read() as session:
        assert session.scalar(select(JobRow.losses)) == 0


def test_progress_shows_on_the_job(server: Server, claim: dict[str, Any]) -> None:
    data = {"step": 4, "total_steps": 10, "trained_tokens": 77, "train_loss": 1.5}
    server.worker.report(claim, events=[event(1, kind="metrics", data=data)])
    job = server.job(claim["job_id"])
    assert (job["step"], job["total_steps"], job["trained_tokens"]) == (4, 10, 77)


def test_an_unknown_job_takes_no_report(server: Server, claim: dict[str, Any]) -> None:
    assert server.worker.report_reply({**claim, "job_id": "ftjob-none"}).status_code == 404


def test_a_report_has_at_most_500_events(server: Server, claim: dict[str, Any]) -> None:
    batch = [metrics(number, number) for number in range(1, 502)]
    assert server.worker.report_reply(claim, events=batch).status_code == 400
    assert server.worker.report(claim, events=batch[:500])["accepted_seq"] == 500


def test_text_that_a_database_cannot_hold_is_stored_all_the_same(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.report(claim, events=[event(1, "a\0b", data={"text": "c\0d"})])
    assert server.messages(claim["job_id"])[-1].startswith("a")
    failure = {"category": "data", "code": "dataset_invalid", "message": "row \0 is bad"}
    server.worker.report(claim, outcome={"state": "failed", "error": failure})
    assert server.job(claim["job_id"])["status"] == "failed"

"""Failed attempts: queued again later if a retry may help, else the job fails."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import JobRow
from tunesmith_server.services.leasing import attempts

from .actors import Server


def failed(code: str, category: str = "infrastructure") -> dict[str, Any]:
    error = {"category": category, "code": code, "message": f"it was {code}", "hint": "look"}
    return {"state": "failed", "error": error}


def wait_of(server: Server, job_id: str) -> float:
    """Seconds until the job may start, by the database's clock."""
    with server.database.read() as session:
        left = session.scalar(select(JobRow.not_before - epoch_now()).where(JobRow.id == job_id))
    assert left is not None
    return float(left)


def failed_attempt(server: Server, job_id: str, code: str, category: str) -> None:
    if server.job(job_id)["attempt"]:
        server.end_back_off(job_id)
    server.worker.report(server.worker.claim(), outcome=failed(code, category))


@pytest.mark.parametrize(
    ("code", "category", "started"),
    [
        ("trainer_crashed", "infrastructure", 3),
        ("device_error", "infrastructure", 3),
        ("storage_read_only", "infrastructure", 3),
        ("killed_for_memory", "out_of_memory", 2),
        ("out_of_memory", "out_of_memory", 1),
        ("loss_nonfinite", "user", 1),
        ("dataset_invalid", "data", 1),
    ],
)
def test_a_failure_gets_as_many_attempts_as_may_help(
    server: Server, code: str, category: str, started: int
) -> None:
    job_id = server.create_job(server.good_file())
    for _ in range(started):
        assert server.job(job_id)["status"] == "queued"
        failed_attempt(server, job_id, code, category)
    job = server.job(job_id)
    assert (job["status"], job["attempt"], job["error"]["code"]) == ("failed", started, code)
    assert server.worker.claim_reply().status_code == 204
    history = job["error"]["message"]
    assert history.startswith(f"it was {code}")
    assert all((f"attempt {n}, 20" in history) == (started > 1) for n in range(1, started + 1))
    path = f"/v1/fine_tuning/jobs/{job_id}/events"
    events = server.user.json(path, params={"limit": 1000})["data"]
    terminal = [e for e in events if e["data"].get("state") in ("failed", "cancelled", "succeeded")]
    assert len(terminal) == 1


def test_each_wait_is_longer_and_a_claim_respects_it(server: Server) -> None:
    server.settings.max_losses = 4
    job_id = server.create_job(server.good_file())
    waits = []
    for _ in range(3):
        failed_attempt(server, job_id, "device_error", "infrastructure")
        waits.append(wait_of(server, job_id))
        assert server.worker.claim_reply().status_code == 204
        assert server.worker.hello().json()["jobs_waiting"] is False
    assert waits == [pytest.approx(seconds, abs=3) for seconds in (10, 30, 90)]
    assert "earliest start in 90 s" in server.messages(job_id)[-1]


def test_the_longest_wait_is_ten_minutes() -> None:
    settings = Settings()
    assert [attempts.back_off(settings, n) for n in (1, 4, 5, 500)] == [10, 270, 600, 600]


def test_every_category_is_in_the_table() -> None:
    assert set(attempts.RETRIED_CATEGORIES) == set(ErrorCategory)


def test_no_wake_up_is_sent_before_the_wait_is_over_and_one_is_after(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.wake_ups.sent.clear()
    failed_attempt(server, job_id, "trainer_crashed", "infrastructure")
    server.janitor().round()
    assert server.wake_ups.sent == []
    server.end_back_off(job_id)
    server.janitor().round()
    assert [subject for _, subject in server.wake_ups.sent] == [job_id]


def test_a_release_is_not_charged_and_not_held_back(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    failed_attempt(server, job_id, "trainer_crashed", "infrastructure")
    server.end_back_off(job_id)
    for _ in range(3):
        server.worker.report(server.worker.claim(), outcome={"state": "released"})
    with server.database.read() as session:
        job = session.get_one(JobRow, job_id)
        assert (job.losses, [one["attempt"] for one in job.failures]) == (1, [1])


@pytest.mark.parametrize(
    ("code", "category"), [("trainer_killed", "infrastructure"), ("loss_nonfinite", "user")]
)
def test_a_job_whose_cancel_was_asked_for_ends_cancelled(
    server: Server, code: str, category: str
) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    server.worker.report(claim, outcome=failed(code, category))
    assert server.job(job_id)["status"] == "cancelled"


def test_a_final_report_said_twice_charges_once(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    for _ in range(2):
        server.worker.report(claim, outcome=failed("trainer_killed"))
    with server.database.read() as session:
        assert session.get_one(JobRow, job_id).losses == 1


def test_a_long_message_leaves_room_for_the_history(server: Server) -> None:
    server.settings.max_losses = 2
    job_id = server.create_job(server.good_file())
    for _ in range(2):
        server.end_back_off(job_id)
        outcome = failed("trainer_crashed")
        outcome["error"]["message"] = "x" * 4000
        server.worker.report(server.worker.claim(), outcome=outcome)
    assert "attempt 2, " in server.job(job_id)["error"]["message"]


def test_the_codes_that_get_one_more_attempt_would_not_by_their_category() -> None:
    assert set(attempts.RETRIED_ONCE) == {ErrorCode.KILLED_FOR_MEMORY}
    assert not attempts.RETRIED_CATEGORIES[ErrorCategory.OUT_OF_MEMORY]


def test_a_job_that_fails_while_it_pauses_is_paused(server: Server) -> None:
    server.settings.max_losses = 1
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.change_job(job_id, state="pausing")
    server.worker.report(claim, outcome=failed("trainer_killed"))
    job = server.job(job_id)
    assert (job["state"], job["phase"]) == ("paused", None)
    assert server.worker.claim_reply().status_code == 204


@pytest.mark.parametrize("length", [150, 1300, 4000])
def test_long_messages_of_attempts_end_with_dots(server: Server, length: int) -> None:
    """The list of attempts is complete, and a shortened message ends with dots."""
    job_id = server.create_job(server.good_file())
    outcome = failed("trainer_crashed")
    outcome["error"]["message"] = "x" * length
    for _ in range(3):
        server.end_back_off(job_id)
        server.worker.report(server.worker.claim(), outcome=outcome)
    message = server.job(job_id)["error"]["message"]
    last, _, *lines = message.split("\n")
    assert last == ("x" * length if length <= 1200 else "x" * 1197 + "...")
    assert len(lines) == 3
    for line in lines:
        assert line.endswith("crashed: " + ("x" * 150 if length == 150 else "x" * 197 + "..."))

"""Run reports: stored with heartbeats, one per attempt, readable like the job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith_schema import JobState

from .actors import Server
from .callers import event


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def run_report(steps: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "attempt": 1,
        "started_at": 1_700_000_000.5,
        "wall_seconds": 10.0,
        "phases": {"claim": 1.0, "import": 4.0, "forward": 5.0},
        "steps": steps,
        "bound": {"by": "startup", "text": "because"},
        "saturation": {"state": "not_measured", "text": "not measured"},
        "advice": {"rule": "none", "text": "nothing to gain"},
        **fields,
    }


def path(claim: dict[str, Any]) -> str:
    return f"/v1/fine_tuning/jobs/{claim['job_id']}/report"


def refusal(server: Server, url: str) -> tuple[int, str]:
    reply = server.user.get(url)
    return reply.status_code, reply.json()["error"]["code"]


def test_a_heartbeat_s_report_is_there_while_the_job_runs(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.report(claim, run_report=run_report(3))
    found = server.user.json(path(claim))
    assert found["object"] == "fine_tuning.job.report"
    assert (found["job_id"], found["attempt"], found["steps"]) == (claim["job_id"], 1, 3)
    assert (found["live"], found["outcome"], found["earlier_attempts"]) == (True, None, [])
    assert found["phases"] == {"claim": 1.0, "import": 4.0, "forward": 5.0}
    assert found["updated_at"] > 1_700_000_000


def test_a_later_one_takes_its_place_and_none_leaves_it(
    server: Server, claim: dict[str, Any]
) -> None:
    server.worker.report(claim, run_report=run_report(3))
    server.worker.report(claim, run_report=run_report(9))
    server.worker.report(claim, events=[event(1)])
    assert server.user.json(path(claim))["steps"] == 9


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "released"])
def test_it_comes_with_every_outcome_and_may_be_repeated(
    server: Server, claim: dict[str, Any], state: str
) -> None:
    files = server.worker.store(claim, {"a.safetensors": b"abc"}) if state == "succeeded" else []
    last = {
        "outcome": {"state": state, "files": files},
        "run_report": run_report(5, outcome=state),
    }
    server.worker.report(claim, **last)
    found = server.user.json(path(claim))
    assert (found["outcome"], found["live"], found["steps"]) == (state, False, 5)
    server.worker.report(claim, **last)
    assert server.user.json(path(claim)) == found


def test_who_lost_the_lease_changes_no_report(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, run_report=run_report(3))
    server.age_lease(claim["job_id"])
    server.take_back()
    assert server.worker.report_reply(claim, run_report=run_report(4)).status_code == 409
    found = server.user.json(path(claim))
    assert (found["steps"], found["live"], found["outcome"]) == (3, False, None)


def test_each_attempt_has_its_own(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(
        claim,
        outcome={"state": "released"},
        run_report=run_report(3, outcome="released"),
    )
    again = server.worker.claim()
    assert server.user.json(path(claim))["attempt"] == 1, "until the second has one"
    server.worker.report(again, run_report=run_report(1, attempt=2))
    found = server.user.json(path(claim))
    assert (found["attempt"], found["steps"], found["live"]) == (2, 1, True)
    assert found["earlier_attempts"] == [
        {"attempt": 1, "outcome": "released", "wall_seconds": 10.0, "steps": 3}
    ]
    first = server.user.json(path(claim), params={"attempt": 1})
    assert (first["steps"], first["live"], first["earlier_attempts"]) == (3, False, [])


def test_an_attempt_is_counted_by_the_server(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, run_report=run_report(attempt=77))
    assert server.user.json(path(claim))["attempt"] == 1


@pytest.mark.parametrize(
    "state", [JobState.VALIDATING_FILES, JobState.QUEUED, JobState.CANCELLED, JobState.RUNNING]
)
def test_while_there_is_none_the_answer_says_so(
    server: Server, job_in: Callable[[JobState], str], state: JobState
) -> None:
    reply = server.user.get(f"/v1/fine_tuning/jobs/{job_in(state)}/report")
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (404, "no_report")
    assert state in error["message"]
    assert error["hint"]


def test_an_attempt_without_one_is_named(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, run_report=run_report())
    reply = server.user.get(path(claim), params={"attempt": 9})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "no_report", "attempt")
    assert "attempt 9" in error["message"]
    assert error["hint"] == "attempts with a report: 1"


def test_a_job_that_is_not_there_has_none(server: Server) -> None:
    assert refusal(server, "/v1/fine_tuning/jobs/ftjob-none/report") == (404, "not_found")


@pytest.mark.parametrize("attempt", ["0", "-1", "one"])
def test_attempts_are_numbers_from_one(server: Server, claim: dict[str, Any], attempt: str) -> None:
    reply = server.user.get(path(claim), params={"attempt": attempt})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "attempt")


def test_it_needs_a_key_as_the_job_does(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, run_report=run_report())
    assert server.anonymous.get(path(claim)).status_code == 401
    assert server.worker.get(path(claim)).status_code == 401
    assert server.new_user("bob").get(path(claim)).status_code == 200


@pytest.mark.parametrize(
    "broken", [{"wall_seconds": -1.0}, {"bound": None}, {"phases": {"claim": "long"}}]
)
def test_a_report_that_is_none_is_ignored(
    server: Server, claim: dict[str, Any], broken: dict[str, Any]
) -> None:
    server.worker.report(claim, run_report=run_report() | broken)
    assert server.user.get(path(claim)).json()["error"]["code"] == "no_report"


def test_what_a_newer_worker_says_beside_is_kept(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(claim, run_report=run_report(novelty={"a": [1, None]}, live=7))
    assert server.user.json(path(claim))["novelty"] == {"a": [1, None]}


def test_the_openapi_document_shows_one_of_each_method(server: Server) -> None:
    document = server.user.json("/openapi.json")
    get = document["paths"]["/v1/fine_tuning/jobs/{job_id}/report"]["get"]
    assert {"200", "4XX"} <= get["responses"].keys()
    schema = document["components"]["schemas"]["JobReport"]
    supervised, reinforcement = schema["examples"]
    for example in (supervised, reinforcement):
        assert example.keys() <= schema["properties"].keys()
        assert sum(example["phases"].values()) == pytest.approx(example["wall_seconds"], abs=0.01)
    rollouts = reinforcement["rollouts"]
    assert rollouts.keys() == document["components"]["schemas"]["Rollouts"]["properties"].keys()
    speed = rollouts["generated_tokens"] / reinforcement["phases"]["generate"]
    assert rollouts["tokens_per_second"] == pytest.approx(speed)

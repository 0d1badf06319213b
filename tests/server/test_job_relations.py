"""Names and notes, filters, curves of lists, self-check, resume points and lineage of jobs."""

from __future__ import annotations

from typing import Any

import pytest

from .actors import Server
from .callers import event, metrics

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file(), metadata={"team": "a"})
    return server.worker.claim()


def listed(server: Server, **params: Any) -> list[str]:
    return [job["id"] for job in server.user.json(JOBS, params=params)["data"]]


def patch(server: Server, job_id: str, **body: Any) -> dict[str, Any]:
    reply = server.user.send("PATCH", f"{JOBS}/{job_id}", json=body)
    assert reply.status_code == 200, reply.text
    job: dict[str, Any] = reply.json()
    return job


def test_people_name_pin_and_annotate_a_job(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    job = patch(server, job_id, name="slower", notes="half the rate", pinned=True)
    assert (job["name"], job["notes"], job["pinned"]) == ("slower", "half the rate", True)
    assert job["metadata"] == {"team": "a"}
    job = patch(server, job_id, metadata={"team": "b"}, notes=None)
    assert (job["name"], job["notes"], job["metadata"]) == ("slower", None, {"team": "b"})
    assert listed(server, text="SLOW") == listed(server, pinned="true") == [job_id]
    assert listed(server, pinned="false") == []
    for refused in ({"model": "x"}, {"pinned": 0}, {"pinned": "true"}):
        reply = server.user.send("PATCH", f"{JOBS}/{job_id}", json=refused)
        assert reply.status_code == 400
    reply = server.user.send("PATCH", f"{JOBS}/ftjob-0", json={"name": "x"})
    assert reply.status_code == 404


def test_a_list_has_owner_worker_and_a_small_curve(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    batch = [metrics(n, n, train_loss=1 / n, total_steps=1000) for n in range(1, 301)]
    server.worker.report(claim, events=batch[:100])
    server.worker.report(claim, events=batch[100:])
    [job] = server.user.json(JOBS, params={"include": "curve"})["data"]
    assert job["worker_id"] == server.worker.name
    assert job["queued_at"] <= job["started_at"]
    assert job["curve"]["name"] == "train_loss"
    assert 30 <= len(job["curve"]["values"]) <= 64
    assert job["curve"]["steps"][-1] == 300
    assert server.user.json(JOBS)["data"][0]["curve"] is None
    assert listed(server, owner=job["owner"]) == listed(server, owner=job["owner_id"]) == [job_id]
    assert listed(server, owner="somebody") == []
    assert server.job(job_id)["estimated_finish"] is not None


def test_events_are_found_by_kind_level_and_text(server: Server, claim: dict[str, Any]) -> None:
    server.worker.report(
        claim,
        events=[event(1, "Loss 50% up", level="warn"), event(2, "loss"), metrics(3, 1, reward=1.0)],
    )
    path = f"{JOBS}/{claim['job_id']}/events"

    def found(**params: Any) -> list[str]:
        return [item["message"] for item in server.user.json(path, params=params)["data"]]

    assert found(kind="metrics") == ["step 1"]
    assert found(level="warn") == ["Loss 50% up"]
    assert found(kind="message", q="LOSS") == ["loss", "Loss 50% up"]
    assert found(q="50%") == ["Loss 50% up"]
    assert found(q="5_%") == []
    assert server.user.get(path, params={"kind": "odd"}).status_code == 400


def test_the_self_check_has_its_checks(server: Server, claim: dict[str, Any]) -> None:
    path = f"{JOBS}/{claim['job_id']}/self_check"
    assert server.user.get(path).status_code == 404
    checks = {"labels": {"state": "passed", "detail": "3 of 3"}}
    said = event(1, "self-check: 1 checks passed in 1.2 s", data={"seconds": 1.2, "checks": checks})
    server.worker.report(claim, events=[said, event(2, "self-check: nothing")])
    found = server.user.json(path)
    assert (found["attempt"], found["seconds"]) == (1, 1.2)
    assert found["checks"] == [{"check": "labels", "state": "passed", "detail": "3 of 3"}]
    assert server.user.get(path, params={"attempt": 2}).status_code == 404


def test_the_lineage_names_forks_retries_and_results(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    server.add_resume_points(job_id, 10, 20)
    points = server.user.json(f"{JOBS}/{job_id}/resume_points")["data"]
    assert [point["step"] for point in points] == [20, 10]
    fork = server.ask(job_id, "fork", suffix="faster")["id"]
    server.worker.succeed(claim)
    found = server.user.json(f"{JOBS}/{job_id}/lineage")
    assert [(one["id"], one["suffix"], one["step"]) for one in found["forks"]] == [
        (fork, "faster", 20)
    ]
    assert [one["kind"] for one in found["results"]] == ["lora"]
    origin = server.user.json(f"{JOBS}/{fork}/lineage")["forked_from"]
    assert (origin["id"], origin["state"], origin["step"]) == (job_id, "succeeded", 20)
    assert listed(server, forked_from=job_id) == [fork]

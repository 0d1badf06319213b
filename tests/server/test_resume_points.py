"""Resume points: stored with their job, listed in the next claim, deleted when not needed."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from tunesmith_server.models import BlobRow, ResumePointRow

from .actors import Server
from .callers import event, metrics


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def save_point(server: Server, claim: dict[str, Any], source_seq: int, step: int) -> None:
    """Events of a step's metrics and the resume point after the step."""
    files = server.worker.store(
        claim, {"manifest.json": b"%d" % step, "trained.safetensors": b"weights %d" % step}
    )
    point = event(
        source_seq + 1,
        kind="resume_point",
        data={"step": step, "directory": "checkpoints/resume-1"},
        files=files,
    )
    server.worker.report(claim, events=[metrics(source_seq, step, train_loss=1.0), point])


def offered(claim: dict[str, Any]) -> list[int]:
    return [point["step"] for point in claim["resume_points"]]


def fetch(server: Server, claim: dict[str, Any], sha256: str) -> Any:  # Any: a response
    path = f"/internal/jobs/{claim['job_id']}/resume/{sha256}"
    return server.worker.get(path, params={"fence": claim["fence"]})


def test_the_newest_two_are_offered_and_can_be_fetched(
    server: Server, claim: dict[str, Any]
) -> None:
    for number, step in enumerate((10, 20, 30)):
        save_point(server, claim, 2 * number + 1, step)
    server.worker.report(claim, outcome={"state": "released"})
    again = server.worker.claim()
    assert (offered(again), again["forked"], again["step"]) == ([30, 20], False, 30)
    for point in again["resume_points"]:
        for file in point["files"]:
            reply = fetch(server, again, file["sha256"])
            assert reply.status_code == 200
            assert hashlib.sha256(reply.content).hexdigest() == file["sha256"]
    dropped = hashlib.sha256(b"weights 10").hexdigest()
    reply = fetch(server, again, dropped)
    assert reply.status_code == 400
    assert dropped in reply.json()["error"]["message"]
    old_fence = fetch(server, claim, again["resume_points"][0]["files"][0]["sha256"])
    assert old_fence.json()["error"]["code"] == "fenced_out"


def test_what_was_not_stored_is_not_offered(server: Server, claim: dict[str, Any]) -> None:
    point = event(1, kind="resume_point", data={"step": 4, "directory": "x"}, files=[])
    server.worker.report(claim, events=[point], outcome={"state": "released"})
    assert offered(server.worker.claim()) == []


def test_one_that_a_run_did_not_take_is_not_offered_again(
    server: Server, claim: dict[str, Any]
) -> None:
    for number, step in enumerate((10, 20)):
        save_point(server, claim, 2 * number + 1, step)
    server.worker.report(claim, outcome={"state": "released"})
    again = server.worker.claim()
    resumed = event(1, kind="resumed", data={"step": 10})
    server.worker.report(again, events=[resumed], outcome={"state": "released"})
    assert offered(server.worker.claim()) == [10]


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_a_job_that_did_not_succeed_keeps_them(
    server: Server, claim: dict[str, Any], outcome: str
) -> None:
    save_point(server, claim, 1, 10)
    server.worker.report(claim, outcome={"state": outcome})
    server.janitor().round()
    assert server.janitor().sweep(timedelta(0)) == 0
    assert server.storage.size(hashlib.sha256(b"weights 10").hexdigest()) == 10


def test_those_that_the_recipe_keeps_stay_and_can_be_forked(server: Server) -> None:
    job_id = server.create_job(server.good_file(), recipe={"save_steps": 10, "keep_every": 20})
    claim = server.worker.claim()
    for number, step in enumerate((10, 20, 30, 40, 50)):
        save_point(server, claim, 2 * number + 1, step)
    server.worker.succeed(claim)
    server.janitor().round()
    server.janitor().sweep(timedelta(0))
    sizes = [
        server.storage.size(hashlib.sha256(b"weights %d" % step).hexdigest())
        for step in (10, 20, 30, 40, 50)
    ]
    assert sizes == [None, 10, None, 10, None]
    fork = server.user.post(f"/v1/fine_tuning/jobs/{job_id}/fork", json={"step": 25})
    assert (fork.status_code, fork.json()["forked_step"]) == (200, 20)


def test_those_of_a_job_that_has_succeeded_go(server: Server, claim: dict[str, Any]) -> None:
    save_point(server, claim, 1, 10)
    server.worker.succeed(claim)
    server.janitor().round()
    server.janitor().sweep(timedelta(0))
    assert server.storage.size(hashlib.sha256(b"weights 10").hexdigest()) is None


def test_a_fork_is_offered_its_parents_until_it_has_its_own(
    server: Server, claim: dict[str, Any]
) -> None:
    for number, step in enumerate((10, 20, 30)):
        if step == 20:  # from here on a fork waits for step 10
            fork = server.create_job(server.good_file())
            server.change_job(fork, forked_from=claim["job_id"], forked_step=10)
        save_point(server, claim, 2 * number + 1, step)
    server.worker.succeed(claim)
    server.janitor().round()
    forked = server.worker.claim()
    assert (forked["job_id"], offered(forked), forked["forked"]) == (fork, [10], True)
    file = forked["resume_points"][0]["files"][0]
    assert fetch(server, forked, file["sha256"]).status_code == 200
    save_point(server, forked, 1, 12)
    server.worker.report(forked, outcome={"state": "released"})
    again = server.worker.claim()
    assert (offered(again), again["forked"]) == ([12], False)
    server.worker.succeed(again)
    server.janitor().round()
    with server.database.read() as session:
        assert session.scalars(select(ResumePointRow.step)).all() == []


def test_a_fork_whose_start_is_gone_is_told_so(server: Server, claim: dict[str, Any]) -> None:
    fork = server.create_job(server.good_file())
    server.change_job(fork, forked_from=claim["job_id"], forked_step=10)
    with server.database.write.begin() as session:
        session.execute(delete(ResumePointRow))
    forked = server.worker.claim()
    assert (offered(forked), forked["forked"]) == ([], True)


def test_content_that_is_stored_need_not_be_sent_again(
    server: Server, claim: dict[str, Any]
) -> None:
    def stored(content: bytes) -> Any:  # Any: JSON
        digest = hashlib.sha256(content).hexdigest()
        path = f"/internal/jobs/{claim['job_id']}/blobs/{digest}"
        return server.worker.json(path, params={"fence": claim["fence"]})

    assert stored(b"weights") == {"stored": False}
    server.worker.put_blob(claim, b"weights")
    assert stored(b"weights") == {"stored": True}
    with server.database.write.begin() as session:
        session.execute(update(BlobRow).values(last_used_at=BlobRow.last_used_at - 13 * 3600))
    assert stored(b"weights") == {"stored": False}, "it could be swept soon"
    server.worker.put_blob(claim, b"weights")
    assert stored(b"weights") == {"stored": True}
    server.storage.delete([hashlib.sha256(b"weights").hexdigest()])
    assert stored(b"weights") == {"stored": False}, "it is gone"


def test_content_of_an_earlier_version_is_sent_again(server: Server, claim: dict[str, Any]) -> None:
    """Earlier versions did not sync what they wrote, so only its size is known to be right."""
    server.worker.put_blob(claim, b"weights")
    with server.database.write.begin() as session:
        session.execute(update(BlobRow).values(stored_at=None))
    digest = hashlib.sha256(b"weights").hexdigest()
    path = f"/internal/jobs/{claim['job_id']}/blobs/{digest}"
    reply = server.worker.json(path, params={"fence": claim["fence"]})
    assert reply == {"stored": False}

"""Jobs make room for others: at a resume point, not twice in ten minutes, without a charge for lost
work. Drains and reservations use the same way."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import update

from tunesmith_server.models import ApiKeyRow, JobRow, ProjectRow, ResumePointRow, UsageRow
from tunesmith_server.scheduling import usage
from tunesmith_server.services import keys
from tunesmith_server.services.leasing import making_room

from .actors import Server
from .callers import Caller


def make_room(server: Server) -> int:
    with server.database.write.begin() as session:
        return making_room.make_room(session)


def control(server: Server, claim: dict[str, Any]) -> str:
    return str(server.worker.report(claim)["control"])


@pytest.fixture
def admin(server: Server) -> Caller:
    with server.database.write.begin() as session:
        key = keys.create(session, "root", role="admin")[1]
    return Caller(server.client, key)


def test_an_interactive_job_takes_the_device_of_a_long_run(server: Server) -> None:
    file_id = server.good_file()
    long = server.create_job(file_id)
    claim = server.worker.claim()
    short = server.create_job(file_id, scheduling={"interactive": True})
    assert make_room(server) == 1
    assert make_room(server) == 0
    assert control(server, claim) == "pause"
    server.worker.report(claim, outcome={"state": "released"})
    job = server.job(long)
    assert (job["state"], job["attempt"]) == ("queued", 1)
    assert f"pre-empted by the interactive job {short}: queued again" in server.messages(long)
    assert server.worker.claim()["job_id"] == short


def test_jobs_are_preempted_from_the_first_round_of_the_janitor_on(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    claim = server.worker.claim()
    server.create_job(file_id, scheduling={"interactive": True})
    server.janitor().round()
    assert control(server, claim) == "pause"


def test_a_job_is_not_preempted_twice_in_ten_minutes(server: Server) -> None:
    file_id = server.good_file()
    long = server.create_job(file_id)
    claim = server.worker.claim()
    server.create_job(file_id, scheduling={"interactive": True})
    assert make_room(server) == 1
    server.worker.report(claim, outcome={"state": "released"})
    server.worker.succeed(server.worker.claim())
    again = server.worker.claim()
    assert again["job_id"] == long
    server.create_job(file_id, scheduling={"interactive": True})
    assert make_room(server) == 0
    server.change_job(long, preempted_at=JobRow.preempted_at - 601)
    assert make_room(server) == 1


def test_a_priority_preempts_lower_ones_only(server: Server) -> None:
    with server.database.write.begin() as session:
        session.execute(update(ApiKeyRow).values(role="lead"))
    file_id = server.good_file()
    server.create_job(file_id, scheduling={"priority": 3})
    claim = server.worker.claim()
    server.create_job(file_id, scheduling={"priority": 3})
    assert make_room(server) == 0
    server.create_job(file_id, scheduling={"priority": 4})
    assert make_room(server) == 1
    assert control(server, claim) == "pause"


@pytest.mark.parametrize("verb", ["stop", "cancel"])
def test_a_job_that_ends_anyway_is_not_preempted(server: Server, verb: str) -> None:
    file_id = server.good_file()
    ending = server.create_job(file_id)
    claim = server.worker.claim()
    server.create_job(file_id, scheduling={"interactive": True})
    assert server.user.post(f"/v1/fine_tuning/jobs/{ending}/{verb}").status_code == 200
    assert make_room(server) == 0
    assert control(server, claim) == verb
    assert not any("pre-empted" in text for text in server.messages(ending))


def test_the_youngest_job_is_preempted_and_none_if_a_device_is_freed(server: Server) -> None:
    file_id = server.good_file()
    old, young = server.create_job(file_id), server.create_job(file_id)
    claims = {one["job_id"]: one for one in map(server.worker.claim, ("worker-1", "worker-2"))}
    server.change_job(old, claimed_at=JobRow.claimed_at - 100)
    server.create_job(file_id, scheduling={"interactive": True})
    assert server.user.post(f"/v1/fine_tuning/jobs/{old}/pause").status_code == 200
    assert make_room(server) == 0
    assert server.user.post(f"/v1/fine_tuning/jobs/{old}/resume").status_code == 200
    assert make_room(server) == 1
    assert {job: control(server, claim) for job, claim in claims.items()} == {
        old: "continue",
        young: "pause",
    }


def test_a_free_device_needs_no_preemption(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    server.worker.claim()
    server.create_job(file_id, scheduling={"interactive": True})
    server.worker.hello("worker-2")
    assert make_room(server) == 0


@pytest.mark.parametrize("table", [ProjectRow, ApiKeyRow])
@pytest.mark.parametrize("limit", [{"max_running_jobs": 1}, {"max_device_hours": 0.0}])
def test_a_job_beyond_a_limit_preempts_nothing(
    server: Server, table: type[ProjectRow | ApiKeyRow], limit: dict[str, float]
) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    server.worker.claim()
    server.create_job(file_id, scheduling={"interactive": True})
    with server.database.write.begin() as session:
        session.execute(update(table).values(**limit))
    assert make_room(server) == 0


def test_a_guarantee_takes_a_device_back(server: Server, admin: Caller) -> None:
    file_id = server.good_file()
    long = server.create_job(file_id)
    claim = server.worker.claim()
    with server.database.write.begin() as session:
        session.add(ProjectRow(id="proj-2", name="two", created_at=0.0, guaranteed_devices=1))
    waiting = server.create_job(file_id)
    server.change_job(waiting, project_id="proj-2")
    set_guarantee(server, 1)
    assert make_room(server) == 0, "the job's project needs the device for its own guarantee"
    set_guarantee(server, 0)
    assert make_room(server) == 1
    assert control(server, claim) == "pause"
    [message] = [text for text in server.messages(long) if "pre-empted" in text]
    assert message.startswith("pre-empted by a job of the project two, which has fewer devices")
    assert waiting not in message


def set_guarantee(server: Server, devices: int) -> None:
    default = ProjectRow.id == "proj-default"
    with server.database.write.begin() as session:
        session.execute(update(ProjectRow).where(default).values(guaranteed_devices=devices))


def test_lost_work_is_not_charged(server: Server) -> None:
    file_id = server.good_file()
    job_id = server.create_job(file_id)
    server.worker.claim()
    server.add_resume_points(job_id, 10)
    ago = time.time() - 1000.0
    server.change_job(job_id, claimed_at=ago, charged_until=ago + 600.0)
    with server.database.write.begin() as session:
        session.execute(update(ProjectRow).values(usage_log=usage.added(None, ago, ago + 600.0)))
        session.execute(update(ResumePointRow).values(created_at=ago + 300.0))
    server.age_lease(job_id)
    assert server.take_back() == 1
    with server.database.read() as session:
        days = session.query(UsageRow).all()
        charged = usage.decayed_seconds(session.query(ProjectRow.usage_log).scalar(), time.time())
    assert sum(day.device_seconds for day in days) == pytest.approx(1000, abs=5)
    assert sum(day.lost_seconds for day in days) == pytest.approx(700, abs=5)
    assert charged == pytest.approx(300, rel=0.02)


def test_an_interactive_job_leaves_the_lane_after_ten_minutes(server: Server) -> None:
    job_id = server.create_job(server.good_file(), scheduling={"interactive": True})
    claim = server.worker.claim()
    server.worker.report(claim)
    assert server.job(job_id)["scheduling"]["interactive"] is True
    server.change_job(job_id, claimed_at=JobRow.claimed_at - 601)
    server.worker.report(claim)
    assert server.job(job_id)["scheduling"]["interactive"] is False
    assert any("leaves the interactive lane" in text for text in server.messages(job_id))


def test_a_drained_host_frees_its_jobs_and_takes_none(server: Server, admin: Caller) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    assert admin.post("/v1/workers/nowhere/drain").status_code == 404
    reply = admin.post("/v1/workers/here/drain", json={"reason": "new disk"})
    assert (reply.status_code, reply.json()["worker"]) == (200, "here")
    assert make_room(server) == 1
    assert control(server, claim) == "pause"
    server.worker.report(claim, outcome={"state": "released"})
    assert server.worker.claim_reply().status_code == 204
    because = server.job(job_id)["waiting_because"]
    assert because == {"code": "reserved", "message": "here is drained (new disk)"}
    [worker] = admin.json("/v1/workers")["data"]
    assert (worker["state"], worker["job_id"]) == ("drained", None)
    assert len(admin.delete("/v1/workers/here/drain").json()["data"]) == 1
    assert server.worker.claim()["job_id"] == job_id


def test_a_reserved_window_admits_one_project(server: Server, admin: Caller) -> None:
    job_id = server.create_job(server.good_file())
    with server.database.write.begin() as session:
        session.add(ProjectRow(id="proj-2", name="two", created_at=0.0))
    now = int(time.time())
    body = {"worker": "here", "project_id": "proj-2", "starts_at": now - 5, "ends_at": now + 900}
    reply = admin.post("/v1/reservations", json=body)
    assert reply.status_code == 200, reply.text
    assert server.worker.claim_reply().status_code == 204
    server.change_job(job_id, project_id="proj-2")
    assert server.worker.claim()["job_id"] == job_id
    server.change_job(job_id, project_id="proj-default")
    assert make_room(server) == 1
    path = f"/v1/reservations/{reply.json()['id']}"
    assert admin.delete(path).json()["deleted"] is True
    assert admin.json("/v1/reservations")["data"] == []

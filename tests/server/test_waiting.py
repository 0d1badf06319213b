"""A warning that no worker has the base model is withdrawn by the event that ends its reason."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from tunesmith_server.models import WorkerRow
from tunesmith_server.services.training import waiting

from .actors import Server
from .callers import event


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", -1.0)


def janitor_round(server: Server) -> None:
    with server.database.write.begin() as session:
        waiting.update_warnings(session)


def remove_workers(server: Server) -> None:
    with server.database.write.begin() as session:
        session.execute(delete(WorkerRow))


def events_of(server: Server, job_id: str) -> list[Any]:  # Any: JSON
    path = f"/v1/fine_tuning/jobs/{job_id}/events"
    events: list[Any] = server.user.json(path, params={"order": "asc"})["data"]
    return events


def warnings(server: Server, job_id: str) -> list[Any]:  # Any: JSON
    return [event for event in events_of(server, job_id) if event["level"] == "warn"]


@pytest.fixture
def warned(server: Server) -> str:
    """A queued job that was created while no worker had its base model."""
    reply = server.create_reply(server.good_file())
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


def test_a_job_is_warned_once(server: Server, warned: str) -> None:
    [warning] = warnings(server, warned)
    assert warning["data"] == {"reason": waiting.REASON, "base_model": "tiny-llama"}
    janitor_round(server)
    assert warnings(server, warned) == [warning]


def test_the_next_event_names_the_worker_that_has_the_model(server: Server, warned: str) -> None:
    [warning] = warnings(server, warned)
    server.worker.hello()
    janitor_round(server)
    janitor_round(server)
    assert warnings(server, warned) == []
    *_, last = events = events_of(server, warned)
    assert last["data"] == {
        "base_model": "tiny-llama",
        "workers": ["worker-1"],
        "withdraws": warning["id"],
    }
    assert "worker-1" in last["message"]
    [old] = [event for event in events if event["id"] == warning["id"]]
    assert old["data"]["withdrawn_by"] == last["id"]
    assert sum("withdraws" in event["data"] for event in events) == 1


def test_a_claim_withdraws_the_warning(server: Server, warned: str) -> None:
    [warning] = warnings(server, warned)
    assert server.worker.claim()["job_id"] == warned
    assert warnings(server, warned) == []
    *_, last = events_of(server, warned)
    assert (last["data"]["state"], last["data"]["withdraws"]) == ("running", warning["id"])


def test_a_claim_without_a_warning_withdraws_nothing(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.worker.claim()
    assert warnings(server, job_id) == []
    assert not any("withdraws" in event["data"] for event in events_of(server, job_id))


def test_a_model_that_is_lost_again_is_warned_of_again(server: Server, warned: str) -> None:
    server.worker.hello()
    janitor_round(server)
    remove_workers(server)
    janitor_round(server)
    janitor_round(server)
    assert len(warnings(server, warned)) == 1
    assert sum("base_model" in event["data"] for event in events_of(server, warned)) == 3


def test_a_job_is_patient_with_a_restarting_worker(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = server.create_job(server.good_file())
    remove_workers(server)
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", 60.0)
    janitor_round(server)
    assert warnings(server, job_id) == []
    monkeypatch.setattr(waiting, "PATIENCE_SECONDS", -1.0)
    janitor_round(server)
    assert len(warnings(server, job_id)) == 1


@pytest.mark.parametrize(
    "data", [{"reason": "a\0b"}, {"a\0b": ["\\\0", "\\u0000"]}], ids=["in a value", "in a key"]
)
def test_nul_in_the_data_of_a_warning_keeps_no_worker_from_its_job(
    server: Server, data: dict[str, Any]
) -> None:
    """PostgreSQL stores NUL in JSON and fails when it reads a key of the value."""
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.worker.report(claim, events=[event(1, level="warn", data=data)])
    server.worker.report(claim, outcome={"state": "released"})
    janitor_round(server)
    assert server.worker.claim()["job_id"] == job_id
    [warning] = warnings(server, job_id)
    shown = {name.replace("\0", "\ufffd"): value for name, value in data.items()}
    assert warning["data"].keys() == shown.keys()
    if "reason" not in data:
        assert warning["data"]["a\ufffdb"] == ["\\\ufffd", "\\u0000"]

"""Reports with events that cannot be stored: the worker gets its command, and later events are
kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy.event
from httpx2 import Response
from sqlalchemy.exc import DataError, OperationalError

from tunesmith_schema import RunReport
from tunesmith_schema.report_example import REPORT_EXAMPLE
from tunesmith_server.core.database import epoch_now
from tunesmith_server.core.storage import StorageUnavailable
from tunesmith_server.models import EventRow, JobRow

from .actors import Server
from .callers import event, metrics

HUGE = 10**40
DEEP: Any = 1
for _ in range(300):
    DEEP = [DEEP]

UNSTORABLE: dict[str, Any] = {  # Any: JSON that no trainer writes
    "a step beyond 64 bits": metrics(2, HUGE, train_loss=1.0),
    "a number of steps beyond 64 bits": metrics(2, 1, total_steps=HUGE),
    "a number of tokens beyond 64 bits": metrics(2, 1, trained_tokens=HUGE),
    "a step beyond the column": metrics(2, 2**31, train_loss=1.0),
    "a negative step": metrics(2, -1, train_loss=1.0),
    "a value beyond every float": metrics(2, 1, train_loss=10**400),
    "a metric's name with NUL": metrics(2, 1, **{"a\0b": 1.0}),
    "more metrics than a step has": metrics(2, 1, **{f"m{n}": 1.0 for n in range(2000)}),
    "an endless message": event(2, "x" * 5000),
    "half a letter": event(2, "\ud800"),
    "half a character in the data": event(2, data={"a": ["\ud800"]}),
    "data of half a megabyte": event(2, data={"a": "x" * 500_000}),
    "data 300 levels deep": event(2, data={"a": DEEP}),
    "an unknown kind": event(2, kind="surprise"),
    "an unknown level": event(2, level="loud"),
    "a time beyond the calendar": event(2, created_at=1e300),
    "no time": {"source_seq": 2, "message": "m"},
    "a list": [2, "m"],
    "a number without a number": {**event(2), "source_seq": None},
    "a number beyond 64 bits": {**event(2), "source_seq": HUGE},
    "a checkpoint without a step": event(
        2, kind="checkpoint", files=[{"name": "a", "bytes": 0, "sha256": "0" * 64}]
    ),
    "a checkpoint without content": event(
        2, kind="checkpoint", data={"step": 1},
        files=[{"name": "a", "bytes": 7, "sha256": "0" * 64}],
    ),
    "a resume point of a step beyond the column": event(
        2, kind="resume_point", data={"step": HUGE}, files=[]
    ),
    "a resumed run at a step beyond the column": event(2, kind="resumed", data={"step": HUGE}),
}  # fmt: skip


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def send(server: Server, claim: dict[str, Any], **report: Any) -> Response:
    """Send a report whose JSON httpx would refuse to encode."""
    body = {"worker_id": server.worker.name, "attempt": claim["attempt"], "fence": claim["fence"]}
    return server.worker.post(
        f"/internal/jobs/{claim['job_id']}/report",
        content=json.dumps(body | report).encode(),
        headers={"content-type": "application/json"},
    )


def all_events(server: Server, claim: dict[str, Any]) -> list[dict[str, Any]]:
    path = f"/v1/fine_tuning/jobs/{claim['job_id']}/events"
    listed: list[dict[str, Any]] = server.user.json(path, params={"order": "asc", "limit": 1000})[
        "data"
    ]
    return listed


@pytest.mark.parametrize("name", UNSTORABLE)
def test_an_event_that_cannot_be_stored_is_replaced_and_the_rest_is_kept(
    server: Server, claim: dict[str, Any], name: str
) -> None:
    server.ask(claim["job_id"], "cancel")
    reply = send(server, claim, events=[event(1, "one"), UNSTORABLE[name], event(3, "three")])
    assert reply.status_code == 200, reply.text
    assert (reply.json()["control"], reply.json()["accepted_seq"]) == ("cancel", 3)
    one, bad, three = all_events(server, claim)[-3:]
    assert (one["message"], three["message"]) == ("one", "three")
    assert (bad["kind"], bad["level"]) == ("quarantined", "warn")
    assert bad["data"]["source_seq"] == 2
    assert bad["data"]["reason"] in bad["message"]
    assert len(bad["message"]) < 1000
    assert server.job(claim["job_id"])["state"] == "running"
    server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}/metrics")
    assert send(server, claim, outcome={"state": "cancelled"}).json()["accepted_seq"] == 3
    assert server.job(claim["job_id"])["state"] == "cancelled"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, -0.0, 2**62, None])
def test_every_float_is_a_metric(server: Server, claim: dict[str, Any], value: float) -> None:
    assert send(server, claim, events=[metrics(1, 1, train_loss=value)]).status_code == 200
    [point] = server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}/metrics")["data"]
    assert list(point["values"]) == ["train_loss"]
    assert all_events(server, claim)[-1]["kind"] == "metrics"


Refuse = Callable[[Callable[[EventRow], bool], Exception], None]


@pytest.fixture
def refuse() -> Iterator[Refuse]:
    """Function that lets the database refuse some events."""
    rules: list[tuple[Callable[[EventRow], bool], Exception]] = []

    def fail(mapper: object, connection: object, row: EventRow) -> None:
        for applies, error in rules:
            if applies(row):
                raise error

    sqlalchemy.event.listen(EventRow, "before_insert", fail)
    yield lambda applies, error: rules.append((applies, error))
    sqlalchemy.event.remove(EventRow, "before_insert", fail)


def test_the_database_refuses_single_events_of_a_large_report(
    server: Server, claim: dict[str, Any], refuse: Refuse
) -> None:
    refuse(lambda row: row.message in ("m7", "m400"), DataError("INSERT", {}, Exception("no")))
    events = [event(number, f"m{number}") for number in range(1, 501)]
    assert send(server, claim, events=events).json()["accepted_seq"] == 500
    stored = all_events(server, claim)[-500:]
    bad = [item["data"]["source_seq"] for item in stored if item["kind"] == "quarantined"]
    assert bad == [7, 400]
    assert [item["message"] for item in stored if item["kind"] == "message"] == [
        f"m{number}" for number in range(1, 501) if number not in (7, 400)
    ]
    first = stored[0]["seq"]
    assert [item["seq"] for item in stored] == list(range(first, first + 500))


def test_a_full_disk_loses_no_event_and_delays_no_command(
    server: Server, claim: dict[str, Any], refuse: Refuse
) -> None:
    server.ask(claim["job_id"], "cancel")
    server.age_lease(claim["job_id"], 100)
    full = OperationalError("INSERT", {}, Exception("database or disk is full"))
    disk = {"full": True}
    refuse(lambda row: disk["full"] and row.message == "two", full)
    batch = [event(1, "one"), event(2, "two")]
    reply = send(server, claim, phase="train", events=batch).json()
    assert (reply["control"], reply["accepted_seq"]) == ("cancel", 0)
    assert server.job(claim["job_id"])["phase"] == "train"
    with server.database.read() as session:
        job = session.get_one(JobRow, claim["job_id"])
        now = session.execute(sqlalchemy.select(epoch_now())).scalar_one()
    assert job.lease_until is not None
    assert job.lease_until > now + server.settings.lease_seconds - 10, "the lease is renewed"
    disk["full"] = False
    assert send(server, claim, events=batch).json()["accepted_seq"] == 2
    assert [item["message"] for item in all_events(server, claim)[-2:]] == ["one", "two"]


def test_an_outcome_waits_until_the_disk_has_room(
    server: Server, claim: dict[str, Any], refuse: Refuse
) -> None:
    refuse(
        lambda row: row.message == "one",
        OperationalError("INSERT", {}, Exception("database or disk is full")),
    )
    reply = send(server, claim, events=[event(1, "one")], outcome={"state": "released"})
    assert reply.status_code == 507, "a reply would tell the worker that the outcome is stored"
    assert server.job(claim["job_id"])["state"] == "running"


def test_storage_that_does_not_answer_delays_no_command(
    server: Server, claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ask(claim["job_id"], "pause")
    files = server.worker.store(claim, {"a.safetensors": b"x"})
    checkpoint = event(1, kind="checkpoint", data={"step": 1}, files=files)

    def unreachable(sha256: str) -> int:
        raise StorageUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(server.storage, "size", unreachable)
        reply = send(server, claim, events=[checkpoint]).json()
        assert (reply["control"], reply["accepted_seq"]) == ("pause", 0)
    assert send(server, claim, events=[checkpoint]).json()["accepted_seq"] == 1
    assert all_events(server, claim)[-1]["kind"] == "checkpoint"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"wall_seconds": float("nan")}, id="NaN"),
        pytest.param({"steps": HUGE}, id="64 bits"),
        pytest.param({"device": "x" * 1_000_000}, id="a megabyte"),
        pytest.param({"bound": None}, id="no bound"),
        pytest.param({"device": "\ud800"}, id="half a character"),
    ],
)
def test_a_run_report_that_cannot_be_stored_keeps_the_last_one(
    server: Server, claim: dict[str, Any], broken: dict[str, Any]
) -> None:
    good = {**REPORT_EXAMPLE, "attempt": 1, "steps": 7}
    good = {name: good[name] for name in RunReport.model_fields if name in good}
    assert send(server, claim, run_report=good).status_code == 200
    server.ask(claim["job_id"], "cancel")
    reply = send(server, claim, events=[event(1, "one")], run_report={**good, **broken})
    assert reply.status_code == 200, reply.text
    assert (reply.json()["control"], reply.json()["accepted_seq"]) == ("cancel", 1)
    assert server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}/report")["steps"] == 7

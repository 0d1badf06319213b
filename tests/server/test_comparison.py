"""Comparison of jobs: what differs, best and last values, and curves over a common axis."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, text, update

from tunesmith_server.models import EventRow, JobRow

from .actors import Server
from .callers import metrics
from .test_run_reports import run_report

PATH = "/v1/fine_tuning/compare"


def trained(server: Server, losses: list[float], **body: Any) -> str:
    job_id = server.create_job(server.good_file(), **body)
    claim = server.worker.claim()
    batch = [
        metrics(n, n, train_loss=loss, trained_tokens=100 * n, total_steps=len(losses))
        for n, loss in enumerate(losses, 1)
    ]
    for at, one in enumerate(batch):
        one["created_at"] = server.job(job_id)["started_at"] + 1800.0 * (at + 1)
    server.worker.report(claim, events=batch)
    server.worker.succeed(claim)
    return job_id


@pytest.fixture
def pair(server: Server) -> list[str]:
    slow = trained(server, [3.0, 1.0, 2.0, 2.5], seed=1, recipe={"lora": {"r": 8}})
    return [slow, trained(server, [3.0, 2.0], seed=2, recipe={"lora": {"r": 16}})]


def compared(server: Server, job_ids: list[str], **params: Any) -> Any:  # Any: JSON
    return server.user.json(PATH, params={"jobs": ",".join(job_ids), **params})


def test_differences_and_results_are_in_the_order_of_the_request(
    server: Server, pair: list[str]
) -> None:
    found = compared(server, pair)
    assert [job["id"] for job in found["jobs"]] == pair
    settings = found["settings"]
    assert settings["lora.r"] == [8, 16]
    assert settings["seed"] == [1, 2]
    assert "model" not in settings
    results = [job["results"]["train_loss"] for job in found["jobs"]]
    assert results == [
        {"last": 2.5, "best": 1.0, "best_step": 2},
        {"last": 2.0, "best": 2.0, "best_step": 2},
    ]
    [one, other] = [job["training_file"] for job in found["jobs"]]
    assert one["sha256"] == other["sha256"]
    assert (one["filename"], one["rows"]) == ("rows.jsonl", 1)
    back = compared(server, pair[::-1])
    assert back["settings"]["seed"] == [2, 1]


@pytest.mark.parametrize(
    ("axis", "first", "second"),
    [
        ("step", [1, 2, 3, 4], [1, 2]),
        ("tokens", [100, 200, 300, 400], [100, 200]),
        ("hours", [0.5, 1.0, 1.5, 2.0], [0.5, 1.0]),
    ],
)
def test_curves_share_an_axis(
    server: Server, pair: list[str], axis: str, first: list[float], second: list[float]
) -> None:
    found = compared(server, pair, axis=axis)
    curves = found["curves"]["train_loss"]
    assert [curve["job_id"] for curve in curves] == pair
    assert [curve["x"] for curve in curves] == [
        pytest.approx(first, abs=0.001),
        pytest.approx(second, abs=0.001),
    ]
    assert [curve["values"] for curve in curves] == [[3.0, 1.0, 2.0, 2.5], [3.0, 2.0]]


def test_hours_of_a_repeated_step_are_those_of_its_repetition(server: Server) -> None:
    job_ids = [trained(server, [1.0]), server.create_job(server.good_file())]
    claim = server.worker.claim()
    start = server.job(job_ids[1])["started_at"]

    def step(seq: int, number: int, hours: float) -> dict[str, Any]:
        return metrics(seq, number, train_loss=1.0) | {"created_at": start + 3600 * hours}

    server.worker.report(claim, events=[step(1, 1, 1), step(2, 2, 2), step(3, 3, 3)])
    server.worker.report(claim, outcome={"state": "released"})
    again = server.worker.claim()
    server.worker.report(again, events=[step(1, 2, 5), step(2, 3, 6)])
    curve = compared(server, job_ids, axis="hours")["curves"]["train_loss"][1]
    assert curve["x"] == pytest.approx([1, 5, 6], abs=0.001)


def test_devices_hosts_and_versions_that_differ_are_named(server: Server) -> None:
    made = ({"host": "a", "versions": {"torch": "2.9", "trl": "1"}}, {"host": "b"}, None)
    job_ids = []
    for report in made:
        job_ids.append(server.create_job(server.good_file()))
        claim = server.worker.claim()
        if report:
            full = run_report(1, device="cpu", **report)
            server.worker.report(claim, run_report=full)
        server.worker.succeed(claim)
    found = compared(server, job_ids[:2])
    assert found["environment"] == {
        "host": ["a", "b"], "versions.torch": ["2.9", None], "versions.trl": ["1", None],
    }  # fmt: skip
    unknown = compared(server, job_ids[1:])["environment"]
    assert unknown == {"device": ["cpu", None], "host": ["b", None]}


def test_two_to_eight_different_jobs_can_be_compared(server: Server, pair: list[str]) -> None:
    for job_ids in (pair[:1], [*pair, pair[0]], [f"ftjob-{n}" for n in range(9)]):
        reply = server.user.get(PATH, params={"jobs": ",".join(job_ids)})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "jobs")
    reply = server.user.get(PATH, params={"jobs": f"{pair[0]},ftjob-none"})
    assert reply.status_code == 404


def test_a_range_of_steps_has_its_own_points_and_best_values(server: Server) -> None:
    losses = [3.0 - step / 1000 for step in range(500)]
    pair = [trained(server, losses, seed=1), trained(server, losses[:20], seed=2)]
    whole = compared(server, pair, points=50)
    assert len(whole["curves"]["train_loss"][0]["x"]) <= 50
    found = compared(server, pair, points=50, **{"from": 401, "to": 430})
    [curve] = found["curves"]["train_loss"]
    assert curve["job_id"] == pair[0]
    assert curve["x"] == [float(step) for step in range(401, 431)]
    assert found["jobs"][0]["results"]["train_loss"]["best_step"] == 430
    assert found["jobs"][1]["results"] == {}


def test_hours_are_those_of_the_events_across_gaps_and_attempts(server: Server) -> None:
    gaps, other = server.create_job(server.good_file()), server.create_job(server.good_file())
    claim = server.worker.claim()
    start = server.job(gaps)["started_at"]

    def steps(numbers: list[int], at: float) -> list[dict[str, Any]]:
        """Return the metrics of these steps, from `at` seconds on. A step takes 1 to 7 seconds."""
        batch = []
        for seq, number in enumerate(numbers, 1):
            at += 1 + seq % 7
            batch.append(metrics(seq, number, train_loss=1.0) | {"created_at": start + at})
        return batch

    numbers = [*range(1, 150), *range(300, 900, 3)]
    server.worker.report(claim, events=steps(numbers, 10.0))
    server.worker.report(claim, outcome={"state": "released"})
    server.worker.report(server.worker.claim(), events=steps([*range(600, 900)], 9000.0))
    damaged: list[Any] = [{"step": None}, {"step": 7.5}, {}, ["step"], "step"]
    with server.database.write.begin() as session:
        row = session.get_one(JobRow, gaps)
        at_these = [EventRow.job_id == gaps, EventRow.kind == "metrics"]
        for place, data in enumerate(damaged, 2):
            seq = 1 + row.last_seq * 30 * place // 200
            session.execute(
                update(EventRow).where(EventRow.seq == seq, *at_these).values(data=data)
            )
        stored = session.execute(
            select(EventRow.seq, EventRow.created_at, EventRow.data)
            .where(*at_these).order_by(EventRow.seq)
        ).all()  # fmt: skip
        start = row.started_at or start
        read = {1 + row.last_seq * n // 200 for n in range(200)} | {row.last_seq}
    known: dict[int, float] = {}
    for seq, created_at, data in stored:
        if seq in read and isinstance(data, dict) and isinstance(data.get("step"), int):
            known = {step: at for step, at in known.items() if step < data["step"]}
            known[data["step"]] = (created_at - start) / 3600
    assert 100 < len(known) < 190
    curves = {
        axis: compared(server, [gaps, other], axis=axis, points=2000)["curves"]["train_loss"][0]
        for axis in ("step", "hours")
    }
    steps_of, hours_of = curves["step"]["x"], curves["hours"]["x"]
    assert steps_of == [*range(1, 150), *range(300, 600, 3), *range(600, 900)]
    hours = dict(zip(steps_of, hours_of, strict=True))
    assert hours_of == sorted(hours_of)
    assert {step: hours[step] for step in known} == pytest.approx(known, rel=1e-5)
    places = sorted(known)
    for low, high in pairwise(places):
        for step in range(low + 1, high):
            if step in hours:
                share = (step - low) / (high - low)
                expected = known[low] + share * (known[high] - known[low])
                assert hours[step] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # PostgreSQL checks JSON
def test_hours_leave_out_events_that_are_not_json(server: Server, pair: list[str]) -> None:
    with server.database.write.begin() as session:
        third = "SELECT max(seq) - 2 FROM job_events WHERE job_id = :id AND kind = 'metrics'"
        damage = f"UPDATE job_events SET data = '{{' WHERE job_id = :id AND seq = ({third})"
        session.execute(text(damage), {"id": pair[0]})
    curve = compared(server, pair, axis="hours")["curves"]["train_loss"][0]
    assert curve["x"] == pytest.approx([0.5, 1.0, 1.5, 2.0], abs=0.001)

"""Curves as columns: no spike is lost, and packed metrics equal the stored ones."""

from __future__ import annotations

import math
import random
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from tunesmith_server.models import CurveRow, JobRow, MetricRow
from tunesmith_server.services.leasing import older_jobs
from tunesmith_server.services.results import curve_chunks, curves

from ..cpu_time import cpu_p95
from .actors import Server
from .callers import event, metrics

Values = dict[int, float | None]


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def store(server: Server, job_id: str, name: str, values: Values, packed: bool = True) -> None:
    """Store a curve as an earlier release did, and pack it."""
    rows = [
        {"job_id": job_id, "step": step, "name": name, "value": value}
        for step, value in values.items()
    ]
    with server.database.write.begin() as session:
        session.execute(insert(MetricRow), rows)
        session.execute(update(JobRow).where(JobRow.id == job_id).values(step=max(values)))
        if packed:
            job = session.get_one(JobRow, job_id, populate_existing=True)
            job.sealed_step = 0
            curve_chunks.seal(session, job, max(values), most=10_000)


def columns(server: Server, job_id: str, **params: Any) -> dict[str, Any]:
    found: dict[str, Any] = server.user.json(
        f"/v1/fine_tuning/jobs/{job_id}/metrics", params={"format": "columns", **params}
    )
    return found


def pairs(curve: dict[str, list[Any]]) -> Values:
    return dict(zip(curve["steps"], curve["values"], strict=True))


def least_and_greatest(values: Values, width: int) -> set[tuple[int, float]]:
    """(stretch, value) of the extremes of each stretch, with six figures."""
    stretches: dict[int, list[float]] = {}
    for step, value in values.items():
        if value is not None:
            stretches.setdefault(step // width, []).append(float(f"{value:.6g}"))
    return {(key, pick(part)) for key, part in stretches.items() for pick in (min, max)}


@pytest.mark.parametrize("seed", range(3))
def test_the_extremes_of_every_stretch_and_every_gap_survive(
    server: Server, claim: dict[str, Any], seed: int
) -> None:
    draw = random.Random(seed)
    steps = sorted(draw.sample(range(1, 9_000), 6_000))
    values: Values = {step: draw.gauss(2, 0.1) * 10 ** draw.randint(-3, 3) for step in steps}
    for step in draw.sample(steps, 5):
        values[step] = None
    store(server, claim["job_id"], "train_loss", values)
    for _ in range(25):
        first, last = sorted(draw.sample(range(9_000), 2))
        points = draw.randint(3, 2000)
        found = columns(server, claim["job_id"], points=points, **{"from": first, "to": last})
        width, curve = (
            found["stretch"],
            pairs(found["curves"].get("train_loss", {"steps": [], "values": []})),
        )
        low, high = max(first, steps[0]) // width * width, (last // width + 1) * width
        part = {step: value for step, value in values.items() if low <= step < high}
        assert least_and_greatest(curve, width) == least_and_greatest(part, width)
        assert sum(value is not None for value in curve.values()) <= points
        nan = {step // width for step, value in part.items() if value is None}
        assert {step // width for step, value in curve.items() if value is None} == nan
        for step, value in curve.items():
            assert value is None or value == float(f"{part[step]:.6g}")


@pytest.mark.parametrize("last", [1, 2, 511, 512, 513, 1023, 1024, 1025, 5_000])
def test_the_last_value_survives(server: Server, claim: dict[str, Any], last: int) -> None:
    """The portal shows it as the current value."""
    draw = random.Random(last)
    values: Values = {step: draw.gauss(2, 0.1) for step in range(1, last + 1)}
    values[max(last - 1, 1)], values[last] = 9.0, 2.0  # neither least nor greatest of its stretch
    store(server, claim["job_id"], "train_loss", values)
    for points in (3, 4, 5, 7, 64, 500, 2000):
        found = columns(server, claim["job_id"], points=points)
        curve = found["curves"]["train_loss"]
        assert (curve["steps"][-1], curve["values"][-1]) == (last, 2.0), points
        assert len(curve["steps"]) == len(set(curve["steps"])) <= points


def test_metrics_are_packed_as_they_arrive(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    for first in range(1, 1200, 100):
        batch = [metrics(n, n, train_loss=1 / n, reward=None) for n in range(first, first + 100)]
        server.worker.report(claim, events=batch)
    with server.database.read() as session:
        assert session.get_one(JobRow, job_id).sealed_step == 1024
        assert len(session.scalars(select(CurveRow)).all()) == 4
    found = columns(server, job_id, points=2000)
    assert found["stretch"] == 1
    assert pairs(found["curves"]["train_loss"]) == {
        n: float(f"{1 / n:.6g}") for n in range(1, 1201)
    }
    assert set(found["curves"]["reward"]["values"]) == {None}
    assert set(columns(server, job_id, names="reward")["curves"]) == {"reward"}
    # A value of a packed step that is stored again is read.
    server.worker.report(claim, events=[metrics(1201, 700, train_loss=50.0)])
    assert pairs(columns(server, job_id)["curves"]["train_loss"])[700] == 50.0


def test_repeated_steps_are_void_and_told_apart(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    for steps in (range(1, 400), range(400, 700)):
        batch = [metrics(n, n, train_loss=float(n)) for n in steps]
        server.worker.report(claim, events=batch)
    server.worker.report(claim, outcome={"state": "released"})
    again = server.worker.claim()
    went_on = event(1, "resumed after step 500", kind="resumed", data={"step": 500})
    server.worker.report(again, events=[went_on, metrics(2, 501, train_loss=-1.0)])
    found = columns(server, job_id)
    own = pairs(found["curves"]["train_loss"])
    assert max(own) == 501
    assert (own[500], own[501]) == (500.0, -1.0)
    [void] = found["void"]
    assert (void["attempt"], void["first_step"], void["last_step"]) == (2, 501, 699)
    assert pairs(void["curves"]["train_loss"]) == {n: float(n) for n in range(501, 700)}


def test_older_jobs_are_packed_in_some_rounds(
    server: Server, claim: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values: Values = {step: math.sin(step) for step in range(1, 1500)}
    store(server, claim["job_id"], "train_loss", values, packed=False)
    before = columns(server, claim["job_id"])
    server.worker.report(claim, outcome={"state": "cancelled"})
    server.change_job(claim["job_id"], step=1499)
    monkeypatch.setattr(older_jobs, "MAX_CHUNKS", 1)
    work, sealed = older_jobs.OlderJobs(), []
    while not work.is_done:
        with server.database.write.begin() as session:
            work.round(session)
            sealed.append(session.scalars(select(JobRow.sealed_step)).one())
    assert sealed == [512, 1024]
    assert columns(server, claim["job_id"]) == before


@pytest.mark.timing
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_hundred_thousand_steps_cost_little(server: Server, claim: dict[str, Any]) -> None:
    job_id = claim["job_id"]
    draw = random.Random(0)
    names = ("train_loss", "learning_rate", "grad_norm", "tokens_per_second")
    with server.database.write.begin() as session:
        rows = [
            {"name": name, "void_by": 0, "job_id": job_id, "start": start} | _packed(draw, start)
            for name in names
            for start in range(0, 100_352, curve_chunks.CHUNK)
        ]
        session.execute(insert(CurveRow), rows)
        ends = (0, 100_351)
        session.add_all(
            MetricRow(job_id=job_id, step=n, name="train_loss", value=1.0) for n in ends
        )
        session.execute(update(JobRow).values(sealed_step=100_352, step=100_351))
    with server.database.read() as session:
        job = session.get_one(JobRow, job_id)
        assert cpu_p95([partial(_read, session, job)] * 20, 0.06) <= 0.06


def _packed(draw: random.Random, start: int) -> dict[str, bytes]:
    steps = list(range(start, start + curve_chunks.CHUNK))
    curve = curve_chunks.Curve(steps, [draw.random() for _ in steps])
    fine = curve_chunks._pack(curve)
    return {"fine": fine, "coarse": curve_chunks._pack(curve.thinned(curve_chunks.BLOCK))}


def _read(session: Session, job: JobRow) -> None:
    found = curves.columns(session, job, names=None, points=2000, first=None, last=None)
    assert len(found) > 10_000

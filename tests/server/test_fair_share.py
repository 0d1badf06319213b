"""The order of the queue: fair shares by decayed usage, guarantees, priorities, age."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_server.core.database import Database
from tunesmith_server.models import ApiKeyRow, JobRow, ProjectRow
from tunesmith_server.scheduling import order, snapshot, usage
from tunesmith_server.scheduling.eligibility import Abilities, can_run, fits, needs_of, packed

DAY = usage.DAY
NOW = 1_790_000_000.0


def decayed(pieces: list[tuple[float, float]], now: float) -> float:
    """Integrate device-time with a half-life of a day, in small steps."""
    width = 10.0
    return sum(
        width * 2 ** ((start + (n + 0.5) * width - now) / DAY)
        for start, end in pieces
        for n in range(int((end - start) / width))
    )


def log_of(pieces: list[tuple[float, float]]) -> float | None:
    total = None
    for start, end in pieces:
        total = usage.added(total, start, end)
    return total


def test_the_stored_logarithm_is_the_decayed_usage() -> None:
    pieces = [(NOW - 3 * DAY, NOW - 3 * DAY + 7200), (NOW - 5000, NOW - 1000)]
    expected = decayed(pieces, NOW)
    assert usage.decayed_seconds(log_of(pieces), NOW) == pytest.approx(expected, rel=1e-6)
    assert usage.decayed_seconds(log_of(pieces), NOW + DAY) == pytest.approx(expected / 2, rel=1e-6)
    assert usage.decayed_seconds(None, NOW) == 0.0
    assert math.isfinite(log_of([(NOW + 500 * 366 * DAY, NOW + 500 * 366 * DAY + 60)]) or 0.0)


def test_what_is_refunded_leaves_no_trace() -> None:
    kept = log_of([(NOW - 9000, NOW)])
    advanced = usage.added(kept, NOW, NOW + 600)
    assert usage.removed(advanced, NOW, NOW + 600) == pytest.approx(kept, rel=1e-12)
    assert usage.removed(usage.added(None, NOW, NOW + 600), NOW, NOW + 600) is None
    assert usage.added(kept, NOW, NOW - 5) == kept  # the clock was set back


@pytest.fixture
def database(database_url: str) -> Any:  # Any: a generator fixture
    opened = Database(database_url)
    yield opened
    opened.dispose()


def add_project(database: Database, number: int, **columns: Any) -> None:  # Any: column values
    with database.write.begin() as session:
        row = {"id": f"proj-{number}", "name": f"p{number}", "created_at": 0.0, **columns}
        session.add(ProjectRow(**row))


def add_job(database: Database, number: int, project: int, **columns: Any) -> str:  # Any: as above
    job_id = f"ftjob-{number:03d}"
    row = {
        "id": job_id, "project_id": f"proj-{project}", "owner": "key-1", "state": "queued",
        "created_at": float(number), "model": "org/m", "training_file": "file-1", "seed": 0,
        "recipe": {}, "hyperparameters": {}, "failures": [], **columns,
    }  # fmt: skip
    with database.write.begin() as session:
        session.add(JobRow(**row))
    return job_id


ANY = Abilities()


def next_id(database: Database, worker: Abilities = ANY) -> str | None:
    with database.read() as session:
        found = session.execute(order.next_job(worker), {"worker": "w", "host": "h"}).one_or_none()
    return None if found is None else found.id


def test_the_project_with_less_usage_per_weight_goes_first(database: Database) -> None:
    hour = log_of([(NOW - 3600, NOW)])
    two_hours = log_of([(NOW - 7200, NOW)])
    add_project(database, 1, usage_log=hour)
    add_project(database, 2, usage_log=two_hours, weight=3.0)
    first, second = add_job(database, 1, 1), add_job(database, 2, 2)
    assert next_id(database) == second
    with database.write.begin() as session:
        session.get_one(ProjectRow, "proj-2").weight = 1.5
    assert next_id(database) == first


def test_a_guarantee_a_priority_and_the_lane_go_first(database: Database) -> None:
    add_project(database, 1)
    add_project(database, 2, usage_log=log_of([(NOW - 3600, NOW)]))
    old, urgent = add_job(database, 1, 1), add_job(database, 2, 1, priority=5)
    guaranteed = add_job(database, 3, 2)
    assert next_id(database) == urgent
    with database.write.begin() as session:
        session.get_one(ProjectRow, "proj-2").guaranteed_devices = 1
    assert next_id(database) == guaranteed
    add_job(database, 4, 2, state="running")  # the guarantee is met
    assert next_id(database) == urgent
    short = add_job(database, 5, 2, interactive=True, owner="key-2")
    assert next_id(database) == short
    add_job(database, 6, 2, interactive=True, owner="key-2", state="running")
    assert next_id(database) == urgent  # one interactive job for each key
    assert old < urgent


def test_a_running_job_counts_for_the_limits_of_project_and_key(database: Database) -> None:
    add_project(database, 1, max_running_jobs=1)
    add_project(database, 2, usage_log=log_of([(NOW - 3600, NOW)]))
    first, second = add_job(database, 1, 1), add_job(database, 2, 2, owner="key-2")
    assert next_id(database) == first
    add_job(database, 3, 1, state="running")
    assert next_id(database) == second
    with database.write.begin() as session:
        session.add(
            ApiKeyRow(
                id="key-2", name="n", sha256="0", prefix="p", created_at=0.0, max_running_jobs=0
            )
        )
    assert next_id(database) is None


def test_sql_and_python_agree_on_random_queues(database: Database) -> None:
    chance = random.Random(7)
    for number in range(4):
        add_project(
            database, number, weight=chance.choice([0.5, 1.0, 3.0]),
            guaranteed_devices=chance.choice([0, 0, 2]),
            usage_log=log_of([(NOW - chance.uniform(1, 9) * 3600, NOW)]),
        )  # fmt: skip
    for number in range(60):
        labels = chance.choice([{}, {}, {"gpu": "h100"}, {"gpu": "h100", "rack": "2"}])
        add_job(
            database, number, chance.randrange(4), priority=chance.choice([-1, 0, 0, 7]),
            interactive=chance.random() < 0.1, owner=f"key-{number}",
            state=chance.choice(["queued"] * 9 + ["running"]), worker_labels=packed(labels),
            model=chance.choice(["org/m", "local"]),
            needs_bytes=chance.choice([None, 20, 40]),
        )  # fmt: skip
    offers = [
        Abilities(
            models=frozenset(models), labels=tuple(sorted(labels.items())), device_bytes=memory
        )
        for models in (["local"], [])
        for labels in ({}, {"gpu": "h100"}, {"rack": "2", "gpu": "h100", "x": "y"})
        for memory in (None, 30)
    ]
    with database.read() as session:
        seen = snapshot.read(session)
        devices = seen.devices()
        jobs = {job.id: job for job in session.scalars(select(JobRow))}
        for offer in offers:
            eligible = set(session.scalars(select(JobRow.id).where(can_run(offer))))
            assert eligible == {key for key, job in jobs.items() if fits(offer, needs_of(job))}
            waiting = [job for job in seen.waiting if job.id in eligible]

            def place(job: snapshot.Waiting) -> snapshot.Place:
                project = seen.projects[job.project_id]
                return snapshot.place(project, devices[project.id], project.usage, job)

            assert next_id(database, offer) == min(waiting, key=place).id

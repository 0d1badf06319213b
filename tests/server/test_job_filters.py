"""Filters of the list of jobs."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import text

from tunesmith import Client
from tunesmith_schema import JobState
from tunesmith_server.models import DEFAULT_PROJECT, JobRow
from tunesmith_server.services.training import events, job_summaries
from tunesmith_server.services.training.job_filters import JobFilters

from .actors import Server
from .live import listening
from .test_page_bounds import copies, reinforcement, usable_file

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def ids(server: Server) -> dict[str, str]:
    file_id = usable_file(server)
    made = {
        "plain": server.create_job(file_id),
        "named": server.create_job(file_id, suffix="Support-DE", metadata={"team": "red"}),
        "grpo": server.create_job(file_id, method=reinforcement()),
        "hub": server.create_job(file_id, model="org/Big_Model"),
    }
    server.ask(made["plain"], "cancel")
    server.ask(made["hub"], "pause")
    warn(server, made["grpo"], at=3000.0)
    for age, name in enumerate(reversed(made)):
        server.change_job(made[name], created_at=1000.0 - age)
    return made


def warn(server: Server, job_id: str, at: float) -> None:
    with server.user_session() as session, session.begin():
        job = session.get_one(JobRow, job_id)
        events.add(session, job, "the loss is NaN", level="warn", created_at=at)


FOUND: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"plain", "named", "grpo", "hub"}),
    ({"state": "cancelled"}, {"plain"}),
    ({"state": ["cancelled", "paused"]}, {"plain", "hub"}),
    ({"method": "reinforcement"}, {"grpo"}),
    ({"method": "supervised", "state": "queued"}, {"named"}),
    ({"model": "org/Big_Model"}, {"hub"}),
    ({"text": "support"}, {"named"}),
    ({"text": "BIG_"}, {"hub"}),
    ({"text": "big%"}, set()),
    ({"text": "support", "metadata[team]": "red"}, {"named"}),
    ({"text": "support", "metadata[team]": "blue"}, set()),
    ({"created_after": 999}, {"grpo", "hub"}),
    ({"created_before": 999}, {"plain", "named"}),
    ({"finished_after": 2000}, {"plain"}),
    ({"finished_after": 4_000_000_000}, set()),
    ({"warned_after": 2000}, {"grpo"}),
    ({"warned_after": 4000}, set()),
]
"""Query parameters -> names of the jobs that they select."""


def test_jobs_are_found(server: Server, ids: dict[str, str]) -> None:
    names = {job_id: name for name, job_id in ids.items()}
    for query, expected in FOUND:
        listed = server.user.json(JOBS, params=query)["data"]
        assert {names[job["id"]] for job in listed} == expected, query


def test_a_part_of_an_id_and_a_tuned_model_are_found(server: Server, ids: dict[str, str]) -> None:
    server.worker.succeed(server.worker.claim())
    [done] = server.user.json(JOBS, params={"state": "succeeded"})["data"]
    for query in ({"text": done["id"][8:20]}, {"model": done["fine_tuned_model"]}):
        assert [job["id"] for job in server.user.json(JOBS, params=query)["data"]] == [done["id"]]
    assert done["id"] in ids.values()


def test_a_wrong_filter_is_refused_by_name(server: Server) -> None:
    many_pairs = "&".join(f"metadata[k{number}]=v" for number in range(2000))
    wrong = [
        "state=done",
        "method=magic",
        "created_after=-1",
        "finished_after=x",
        "warned_after=-1",
        "text=" + "x" * 201,
        many_pairs,
    ]
    for query in [*wrong, "metadata[k]=" + "v" * 513]:
        reply = server.user.get(f"{JOBS}?{query}")
        assert reply.status_code == 400, query
        name = query.partition("=")[0].partition("[")[0]
        assert reply.json()["error"]["param"].startswith(name)


def test_the_sdk_filters_and_pages(server: Server, ids: dict[str, str]) -> None:
    with (
        listening(server.app) as url,
        Client(base_url=f"{url}/v1", api_key=server_key(server)) as c,
    ):
        found = c.fine_tuning.jobs.list(state=["cancelled", "paused"], limit=1)
        assert {job.id for job in found} == {ids["plain"], ids["hub"]}
        assert [job.id for job in c.fine_tuning.jobs.list(text="support")] == [ids["named"]]
        assert list(c.fine_tuning.jobs.list(created_after=int(time.time()) + 60)) == []


def server_key(server: Server) -> str:
    return str(server.user.headers["authorization"]).removeprefix("Bearer ")


def test_a_rare_match_is_found_in_the_index_alone(server: Server) -> None:
    """SQLite reads a row only after the filters have matched the columns of the index."""
    job_id = server.create_job(server.good_file())
    copies(server, job_id, 10)
    if server.database.engine.dialect.name != "sqlite":
        pytest.skip("SQLite's query plan: PostgreSQL chooses by its statistics")  # by design
    filters = JobFilters(
        states=[JobState.FAILED], method="supervised", model="m", text="x", finished_after=1
    )
    with server.database.read() as session:
        query = job_summaries.query().where(*filters.conditions(session))
        query = query.where(JobRow.project_id == DEFAULT_PROJECT)  # as a user's session does
        query = query.order_by(text("jobs.created_at DESC, jobs.id DESC")).limit(21)
        compiled = query.compile(session.get_bind(), compile_kwargs={"literal_binds": True})
        plan = session.execute(text(f"EXPLAIN QUERY PLAN {compiled}".replace(":", r"\:"))).all()
    steps = " / ".join(str(row[-1]) for row in plan)
    assert "ix_jobs_list" in steps
    assert "TEMP B-TREE" not in steps

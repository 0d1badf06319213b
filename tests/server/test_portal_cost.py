"""CPU time of the calls behind the portal's lists, with 10,000 jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from tunesmith_schema import JobState
from tunesmith_server.models import DEFAULT_PROJECT, JobRow
from tunesmith_server.services.training import job_progress, jobs
from tunesmith_server.services.training.job_filters import JobFilters

from ..cpu_time import cpu_p95
from .actors import Server
from .test_page_bounds import copies

JOBS = 10_000
CURVE = {"name": "train_loss", "steps": list(range(64)), "values": [1.23456] * 64}


@pytest.fixture
def many(server: Server) -> Server:
    copies(server, server.create_job(server.good_file()), JOBS - 1)
    with server.database.write.begin() as session:
        session.execute(update(JobRow).values(curve=CURVE))
    return server


def cost_of(
    open_session: Callable[[], Session], call: Callable[[Session], Any], bar: float
) -> float:
    def in_session() -> None:
        with open_session() as session:
            call(session)

    return cpu_p95([in_session] * 20, bar)


@pytest.mark.timing
def test_a_page_and_a_poll_of_ten_thousand_jobs_cost_little(many: Server) -> None:
    def page(filters: JobFilters) -> Callable[[Session], Any]:
        return lambda session: jobs.list_jobs(
            session, after=None, limit=50, order="desc", filters=filters, with_curve=True
        ).content()

    for filters in (JobFilters(), JobFilters(text="nothing"), JobFilters(pinned=True)):
        assert cost_of(many.user_session, page(filters), 0.06) <= 0.06, filters

    def poll(session: Session) -> Any:
        return job_progress.heads(session, [DEFAULT_PROJECT], time.time())

    assert len(poll(many.database.read())[DEFAULT_PROJECT]) == JOBS
    assert cost_of(many.database.read, poll, 0.15) <= 0.15
    with many.database.write.begin() as session:
        ended = {"state": JobState.SUCCEEDED, "finished_at": 1.0}
        session.execute(update(JobRow).values(ended))
        newest = select(JobRow.id).limit(20).scalar_subquery()
        session.execute(update(JobRow).where(JobRow.id.in_(newest)).values(state="running"))
    assert cost_of(many.database.read, poll, 0.01) <= 0.01

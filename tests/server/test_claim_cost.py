"""A claim reads one job of each project, by an index, however many jobs are queued."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.schedule_parts import claim_cost
from benchmarks.schedule_parts.figures import percentile
from sqlalchemy import delete, text
from sqlalchemy.exc import InternalError

from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings
from tunesmith_server.models import JobRow

CPU_SECONDS = 0.012
"""Limit on slow machines; `benchmarks/schedule.py` measures the bar of 5 ms."""
STATEMENTS = {"sqlite": 6, "postgresql": 5}
"""Worker, choice, job, event, project; and BEGIN on SQLite."""


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    opened = Database(database_url)
    claim_cost.fill(opened, 10_000)
    yield opened
    opened.dispose()


def test_the_plan_of_a_claim_uses_the_index_and_no_scan_of_jobs(
    database: Database, settings: Settings
) -> None:
    plan = claim_cost.plan(database)
    assert "ix_jobs_claim" in plan, plan
    assert "Seq Scan on jobs" not in plan, plan
    assert "SCAN jobs" not in plan, plan
    assert "SCAN files" not in plan, plan
    assert "SCAN job_events" not in plan, plan


def test_a_claim_takes_few_statements(database: Database, settings: Settings) -> None:
    claim_cost.claim_costs(database, settings, 1)  # registers worker w0
    sent = claim_cost.statements(database, settings)
    assert len(sent) == STATEMENTS[database.engine.dialect.name], sent


@pytest.mark.timing
def test_a_claim_takes_few_milliseconds(database: Database, settings: Settings) -> None:
    cpu = claim_cost.claim_costs(database, settings, 60).cpu
    assert percentile(cpu, 0.5) < CPU_SECONDS, sorted(cpu)[-5:]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_reads_keep_the_prepared_statements_of_a_connection(
    database: Database, settings: Settings
) -> None:
    """psycopg drops them at a ROLLBACK; each claim would be planned again."""
    claim_cost.claim_costs(database, settings, 10)
    prepared = text("SELECT statement FROM pg_prepared_statements")
    with database.read() as session:
        assert any("FOR UPDATE" in statement for statement in session.scalars(prepared))
    with database.read() as session, pytest.raises(InternalError, match="read-only"):
        session.execute(delete(JobRow))

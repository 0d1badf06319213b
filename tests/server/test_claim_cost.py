"""A claim reads one job of each project, by an index, however many jobs are queued."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.schedule_parts import claim_cost
from benchmarks.schedule_parts.figures import percentile

from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings

CPU_SECONDS = 0.03
"""Tripwire for a busy machine; `benchmarks/schedule.py` measures against 5 ms."""


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
    _, cpu = claim_cost.claim_times(database, settings, 60)
    assert percentile(cpu[10:], 0.5) < CPU_SECONDS, sorted(cpu)[-5:]

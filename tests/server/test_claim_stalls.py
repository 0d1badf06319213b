"""20 claimers that stall at random: each job ends once, and late writers are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings

from .stalled_claimers import Stalls


@pytest.mark.parametrize("jobs", [60, 300])
def test_stalled_claimers_lose_and_double_no_job(
    database_url: str, tmp_path: Path, jobs: int
) -> None:
    settings = Settings(
        data_dir=tmp_path, database_url=database_url, broker_url="memory://", lease_seconds=1.0,
        retry_seconds=0.0, max_losses=1000,
    )  # fmt: skip
    database = Database(database_url)
    try:
        found = Stalls(database, settings, jobs=jobs).run(20)
    finally:
        database.dispose()
    assert (found["claimed_twice"], found["ended_twice"], found["lost"]) == (0, 0, 0), found
    assert found["states"] == {"succeeded": jobs}
    assert found["stalls"] > 0
    assert 0 < found["refused_reports"] <= found["claims"] - jobs, found

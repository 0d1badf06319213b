"""Short chaos test: one kill of each target. `make chaos` makes 300 kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from .__main__ import STACKS, run
from .checks import Weights
from .recipes import SHORT

pytestmark = [pytest.mark.slow, pytest.mark.stacks, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def expected() -> dict[str, Weights]:
    """Weights of jobs that were left alone; the second stack compares with those of the first."""
    return {}


@pytest.mark.parametrize("name", STACKS)
def test_jobs_among_kills_have_the_results_of_jobs_left_alone(
    tmp_path: Path, name: str, expected: dict[str, Weights]
) -> None:
    targets = STACKS[name].targets
    (result,) = run(tmp_path / "chaos", [name], len(targets), list(SHORT), 5, expected)
    assert result.problems == []
    assert result.exits == []
    assert result.kills == dict.fromkeys(targets, 1)

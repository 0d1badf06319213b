"""Short chaos test: one kill of each target. `make chaos` makes 300 kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from .__main__ import STACKS, run

pytestmark = [pytest.mark.slow, pytest.mark.stacks, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", STACKS)
def test_jobs_among_kills_have_the_results_of_jobs_left_alone(tmp_path: Path, name: str) -> None:
    targets = STACKS[name].targets
    recipes = ["lora", "grpo thrice", "full bf16_sr8"]
    (result,) = run(tmp_path / "chaos", [name], len(targets), recipes, seed=5)
    assert result.problems == []
    assert result.exits == []
    assert result.kills == dict.fromkeys(targets, 1)

"""Which checkpoints go: the last N stay, the best one, and every K-th step's."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tunesmith_schema import Recipe
from tunesmith_schema.retention import checkpoints_to_drop

LOSSES: dict[int, float | None] = {10: 3.0, 20: 1.0, 30: float("nan"), 40: 2.0, 50: None, 60: 1.0}


@pytest.mark.parametrize(
    ("limit", "every", "dropped"),
    [
        (None, None, []),
        (6, None, []),
        (2, None, [10, 30, 40]),
        (1, 40, [10, 30, 50]),
        (1, 10, []),
    ],
)
def test_the_last_the_best_and_every_kth_stay(
    limit: int | None, every: int | None, dropped: list[int]
) -> None:
    recipe = Recipe(save_total_limit=limit, keep_every=every)
    assert checkpoints_to_drop(LOSSES, recipe) == dropped


def test_without_validation_the_last_stay() -> None:
    assert checkpoints_to_drop({1: None, 2: None, 3: None}, Recipe(save_total_limit=2)) == [1]


def test_keep_every_needs_a_limit() -> None:
    with pytest.raises(ValidationError, match="without it all are kept"):
        Recipe(keep_every=10)

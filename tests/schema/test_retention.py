"""Which checkpoints go: the last N stay, the best one, and every K-th step's."""

from __future__ import annotations

import pytest

from tunesmith_schema import Recipe
from tunesmith_schema.retention import checkpoints_to_drop, resume_points_to_keep

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


@pytest.mark.parametrize(
    ("every", "kept"), [(None, {25, 30}), (10, {10, 20, 25, 30}), (7, {25, 30}), (25, {25, 30})]
)
def test_of_resume_points_the_newest_two_and_the_named_stay(
    every: int | None, kept: set[int]
) -> None:
    assert resume_points_to_keep([5, 10, 20, 25, 30], every) == kept

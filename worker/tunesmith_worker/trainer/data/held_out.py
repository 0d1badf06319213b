"""Rows that are kept out of training as validation rows (`recipe.validation_split`).

Whole rows are kept out: if the chat template makes several examples from a row, all these examples
are kept out.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError


def held_out_rows(rows: Sequence[int], share: float, seed: int, name: str) -> frozenset[int]:
    """Choose the rows to keep out of training: a share `share` of the rows, but at least one row.

    The same arguments always give the same rows. `rows`: row numbers. `name`: file name for
    messages. Raises RunError if no row is left to train on."""
    numbers = sorted(set(rows))
    count = max(1, round(share * len(numbers)))
    if count >= len(numbers):
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.validation_split={share:g} leaves none of the {len(numbers)} rows of {name} "
            "to train on.",
            hint="Add rows to the training file, or remove recipe.validation_split.",
            param="recipe.validation_split",
        )
    return frozenset(random.Random(f"validation_split {seed}").sample(numbers, count))


def held_out_message(count: int, rows: int, share: float, name: str) -> str:
    return (
        f"{name}: {count} of {rows} rows are kept out of training as validation rows "
        f"(recipe.validation_split={share:g})"
    )

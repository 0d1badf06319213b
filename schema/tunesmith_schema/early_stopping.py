"""`recipe.early_stopping`, and what it and `recipe.keep` ask of a job: a validation file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationInfo
from pydantic_core import PydanticCustomError

from .base import Request

if TYPE_CHECKING:
    from .recipe import Recipe

Metric = Literal["valid_loss", "valid_mean_token_accuracy"]
NEEDS_VALIDATION = "needs_validation_file"
"""Pydantic's type of the complaint; its context names the field of the recipe."""


class EarlyStoppingRecipe(Request):
    """End the training once the evaluations gain nothing any more."""

    metric: Metric = "valid_loss"
    """What is judged: `valid_loss` (lower is better) or `valid_mean_token_accuracy` (higher is)."""
    patience: int = Field(default=3, ge=1, le=1000)
    """Evaluations in a row without a gain that end the training; `eval_steps` says how far apart
    they are."""
    min_delta: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """An evaluation is a gain when it is better by more than this than the last one that was, or is
    the first. One that is no number is never a gain."""


def with_validation_file(recipe: Recipe, info: ValidationInfo) -> Recipe:
    """Refuse a recipe beside which `validation_file` is missing, by the field that needs one."""
    if "validation_file" not in info.data or info.data["validation_file"] is not None:
        return recipe
    needs = {"early_stopping": recipe.early_stopping is not None, "keep": recipe.keep == "best"}
    for field, needed in needs.items():
        if needed:
            raise PydanticCustomError(
                NEEDS_VALIDATION,
                "it needs evaluations, and there is no validation_file: give one, or leave "
                "recipe.{field} out",
                {"field": field},
            )
    return recipe

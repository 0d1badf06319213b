"""Forking: another job from a point of one, with a changed recipe. Knows what may not change."""

from __future__ import annotations

from typing import Self

from pydantic import Field, JsonValue, model_validator

from .base import Request, Text, with_example
from .graders import Grader
from .methods import Hyperparameters, ReinforcementHyperparameters
from .recipe import LoraRecipe, Recipe


class JobFork(Request):
    """Body of `POST /v1/fine_tuning/jobs/{id}/fork`: where to start, and what is different."""

    model_config = with_example(
        {"step": 400, "recipe": {"learning_rate": 5e-5}, "suffix": "slower"}
    )

    checkpoint: Text | None = None
    """Id of one of the job's checkpoints (`ftckpt-...`), in place of `step`."""
    step: int | None = Field(default=None, ge=1)
    """Start from the newest resume point at or before this step. Without it and `checkpoint`: from
    the newest there is."""
    recipe: dict[str, JsonValue] = Field(default_factory=dict)
    """Fields of the recipe that change, as in a create; the rest is the job's. What training has
    already shaped cannot change: `tuning`, `from_scratch`, `lora` but for `lora_dropout`,
    `quantization`, `precision`, `add_tokens`."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters | None = Field(
        default=None, union_mode="left_to_right"
    )
    """Those given change, the rest is the job's."""
    grader: Grader | None = None
    """Of a reinforcement job: what scores from here on. The best evaluation so far is forgotten, as
    another grader's rewards do not compare."""
    suffix: Text | None = Field(default=None, min_length=1, max_length=64)
    """The job's, when not given."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """The job's, when not given."""
    metadata: dict[Text, Text] | None = None
    """The job's, when not given; bounds as in a create."""

    @model_validator(mode="after")
    def _one_place_to_start(self) -> Self:
        if self.checkpoint is not None and self.step is not None:
            raise ValueError("checkpoint and step both say where to start: give one")
        return self


FIXED = ("tuning", "from_scratch", "quantization", "precision", "add_tokens")
"""What the state of a training run fits or does not: the recipe's own fields. And LORA_FIXED."""
LORA_FIXED = tuple(name for name in LoraRecipe.model_fields if name != "lora_dropout")


def merged(recipe: Recipe, changes: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """`changes` laid over `recipe`, objects field by field; not validated."""
    whole: dict[str, JsonValue] = recipe.model_dump(mode="json")
    for name, value in changes.items():
        old = whole.get(name)
        both = isinstance(old, dict) and isinstance(value, dict)
        whole[name] = {**old, **value} if both else value  # type: ignore[dict-item]  # both are dicts
    return whole


def first_fixed_change(old: Recipe, new: Recipe) -> tuple[str, JsonValue, JsonValue] | None:
    """A field that differs although what was trained depends on it: its name, and both values."""
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in FIXED]
    shapes = (old.lora or LoraRecipe(), new.lora or LoraRecipe())
    pairs += [(f"lora.{name}", *(getattr(shape, name) for shape in shapes)) for name in LORA_FIXED]
    return next((pair for pair in pairs if pair[1] != pair[2]), None)

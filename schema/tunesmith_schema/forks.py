"""Fork of a job: a new job that starts from a resume point of that job, with another recipe."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from .base import Request, Text, with_example
from .bounds import MAX_RECIPE_BYTES, MAX_STEP, JsonBound, Metadata, ObjectId
from .graders import BoundedGrader
from .methods import Hyperparameters, ReinforcementHyperparameters
from .recipe import LoraRecipe, Recipe


class JobFork(Request):
    """Body of `POST /v1/fine_tuning/jobs/{id}/fork`: the starting point and the changes."""

    model_config = with_example(
        {"step": 400, "recipe": {"learning_rate": 5e-5}, "suffix": "slower"}
    )

    checkpoint: ObjectId | None = None
    """Id of a checkpoint of the job (`ftckpt-...`), as an alternative to `step`."""
    step: int | None = Field(default=None, ge=1, le=MAX_STEP)
    """Optimiser step: the fork starts from the newest resume point at or before this step. Without
    `step` and `checkpoint`, the fork starts from the newest resume point."""
    recipe: Annotated[dict[str, JsonValue], JsonBound(MAX_RECIPE_BYTES)] = Field(
        default_factory=dict
    )
    """Recipe fields to change, as in a create request; all other fields are copied from the job.
    Fields that determine the trained state cannot change: `tuning`, `from_scratch`, `lora` except
    `lora_dropout`, `quantization`, `precision`, `add_tokens`."""
    hyperparameters: Hyperparameters | ReinforcementHyperparameters | None = Field(
        default=None, union_mode="left_to_right"
    )
    """Hyperparameters to change; all other hyperparameters are copied from the job."""
    grader: BoundedGrader | None = None
    """New grader of a reinforcement job. The best evaluation so far is discarded, because rewards
    from different graders are not comparable."""
    suffix: Text | None = Field(default=None, min_length=1, max_length=64)
    """Part of the tuned model's name; the default is the original job's suffix."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Random seed; the default is the original job's seed."""
    metadata: Metadata | None = None
    """New metadata, with the same limits as in a create request; the default is the original job's
    metadata."""

    @model_validator(mode="after")
    def _one_place_to_start(self) -> Self:
        if self.checkpoint is not None and self.step is not None:
            raise ValueError("checkpoint and step both set the starting point: set only one")
        return self


FIXED = ("tuning", "from_scratch", "quantization", "precision", "add_tokens")
"""Recipe fields that a fork cannot change, because the weights and the optimiser state of the
resume point depend on them."""
LORA_FIXED = tuple(name for name in LoraRecipe.model_fields if name != "lora_dropout")


def merged(recipe: Recipe, changes: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Return `recipe` with `changes` merged in, also inside nested objects; the result is not
    validated."""
    whole: dict[str, JsonValue] = recipe.model_dump(mode="json")
    for name, value in changes.items():
        before = whole.get(name)
        nested = isinstance(before, dict) and isinstance(value, dict)
        whole[name] = {**before, **value} if nested else value  # type: ignore[dict-item]  # both are dicts
    return whole


def first_fixed_change(old: Recipe, new: Recipe) -> tuple[str, JsonValue, JsonValue] | None:
    """Return the field name, old value and new value of the first change that a fork must not make,
    or None."""
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in FIXED]
    shapes = (old.lora or LoraRecipe(), new.lora or LoraRecipe())
    pairs += [(f"lora.{name}", *(getattr(shape, name) for shape in shapes)) for name in LORA_FIXED]
    return next((pair for pair in pairs if pair[1] != pair[2]), None)

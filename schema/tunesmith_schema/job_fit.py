"""Whether a recipe fits the rest of its job: the validation file, the method, the hyperparameters.

Used where a job is created and where a run directory is read, so both say the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from .early_stopping import judged_by
from .grpo import GRPORecipe

if TYPE_CHECKING:
    from .methods import ReinforcementHyperparameters
    from .recipe import Recipe

DOES_NOT_FIT = "recipe_does_not_fit"
"""Pydantic's type of the complaint; its context names the field of the recipe, dotted."""

Misfit = tuple[str, str]
"""A field of the recipe, and what is wrong with it."""


def fits_job(recipe: Recipe, info: ValidationInfo) -> Recipe:
    """Refuse a recipe that does not fit the fields that stand before it, naming its own."""
    given = info.data.get("method")
    reinforced = given is not None and getattr(given, "type", given) == "reinforcement"
    wrong = [*_without_validation_file(recipe, info)]
    wrong += _not_reinforcement(recipe) if reinforced else _not_supervised(recipe)
    for field, message in wrong:
        raise PydanticCustomError(DOES_NOT_FIT, "{message}", {"field": field, "message": message})
    return recipe


def _without_validation_file(recipe: Recipe, info: ValidationInfo) -> Iterator[Misfit]:
    if "validation_file" not in info.data or info.data["validation_file"] is not None:
        return
    needs = {"early_stopping": recipe.early_stopping is not None, "keep": recipe.keep == "best"}
    for field, needed in needs.items():
        if needed:
            yield (
                field,
                "it needs evaluations, and there is no validation_file: give one, or leave "
                f"recipe.{field} out",
            )


def _not_supervised(recipe: Recipe) -> Iterator[Misfit]:
    for field, value in (("grpo", recipe.grpo), ("rollout", recipe.rollout)):
        if value is not None:
            yield (
                field,
                "it is for reinforcement: give method={'type': 'reinforcement', ...}, or leave "
                f"recipe.{field} out",
            )
    if judged_by(recipe.early_stopping, "supervised") == "valid_reward":
        yield (
            "early_stopping.metric",
            "'valid_reward' is for reinforcement: use 'valid_loss' or 'valid_mean_token_accuracy'",
        )


def _not_reinforcement(recipe: Recipe) -> Iterator[Misfit]:
    if recipe.packing is True:
        yield (
            "packing",
            "true is for supervised training: completions are laid out by recipe.rollout, so leave "
            "recipe.packing out",
        )
    if recipe.assistant_only_loss != "auto":
        yield (
            "assistant_only_loss",
            "it is for supervised training: reinforcement trains what the model has generated, and "
            "nothing else; leave it out",
        )
    if recipe.overlong == "truncate":
        yield (
            "overlong",
            "'truncate' is for supervised training: a prompt that is cut asks something else; use "
            "'drop' or 'error'",
        )
    if recipe.from_scratch:
        yield (
            "from_scratch",
            "it is for supervised training: random weights generate nothing that could be rewarded",
        )
    if recipe.patches != "auto" and "loss" not in recipe.patches:
        yield (
            "patches",
            f"{recipe.patches!r} is for supervised training: the log-probabilities of completions "
            "come from the loss kernel; use ['loss'], which leaves the rest stock, or 'auto'",
        )
    if recipe.quantization == "int8":
        yield (
            "quantization",
            "'int8' is for supervised training: the rollout engine does not read weights in 8 "
            "bits; use 'nf4' or 'none'",
        )
    if judged_by(recipe.early_stopping, "reinforcement") != "valid_reward":
        yield (
            "early_stopping.metric",
            "reinforcement is judged by 'valid_reward': use that, or leave the metric out",
        )
    grpo = recipe.grpo or GRPORecipe()
    length, whole = grpo.max_completion_length, recipe.max_seq_length
    if length != "auto" and whole != "auto" and length >= whole:
        yield (
            "grpo.max_completion_length",
            f"{length} leaves nothing of recipe.max_seq_length={whole} to a prompt",
        )
    prompts, group = grpo.prompts_per_step, grpo.num_generations
    if prompts != "auto" and group != "auto":
        yield from _not_the_step(recipe, prompts, group)


def _not_the_step(recipe: Recipe, prompts: int, group: int) -> Iterator[Misfit]:
    """Forward passes that do not make up a step of that many prompts and completions each."""
    rows, passes = recipe.per_device_train_batch_size, recipe.gradient_accumulation_steps
    known = (1 if rows == "auto" else rows) * (1 if passes == "auto" else passes)
    both = "auto" not in (rows, passes)
    if (both and known != prompts * group) or prompts * group % known:
        yield (
            "per_device_train_batch_size" if rows != "auto" else "gradient_accumulation_steps",
            f"per_device_train_batch_size x gradient_accumulation_steps ({rows} x {passes}) are "
            f"completions, and a step has {prompts * group} ({prompts} prompts x {group}): leave "
            "both out",
        )


def check_reinforcement(given: ReinforcementHyperparameters, recipe: Recipe) -> None:
    """Two words for one thing. Raises ValueError."""
    grpo = recipe.grpo or GRPORecipe()
    pairs = (
        ("batch_size", given.batch_size, "grpo.prompts_per_step", grpo.prompts_per_step),
        ("eval_interval", given.eval_interval, "eval_steps", recipe.eval_steps),
    )
    for ours, value, theirs, other in pairs:
        if "auto" not in (value, other) and value != other:
            raise ValueError(
                f"hyperparameters.{ours}={value} and recipe.{theirs}={other} differ: give one"
            )
    if "auto" not in (given.compute_multiplier, grpo.num_generations):
        raise ValueError(
            "hyperparameters.compute_multiplier scales the automatic number of completions: leave "
            "it out when recipe.grpo.num_generations is given"
        )

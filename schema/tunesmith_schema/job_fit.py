"""Checks of a recipe against the other fields of its job: validation file, method and
hyperparameters.

The checks apply to a create request (`jobs.py`) and to the trainer's spec.json (`run.py`), so both
are refused with the same errors.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationInfo
from pydantic_core import PydanticCustomError

from .early_stopping import selection_metric
from .grpo import GRPORecipe
from .methods import ReinforcementHyperparameters
from .recipe import Recipe

DOES_NOT_FIT = "recipe_does_not_fit"
"""Pydantic error type of the checks in this module. The context of the error contains the dotted
name of the recipe field."""

Misfit = tuple[str, str]
"""Recipe field and error message."""


def check_job_fit(recipe: Recipe, info: ValidationInfo) -> Recipe:
    """Return the recipe, or raise an error for the first recipe field that contradicts another job
    field."""
    method = info.data.get("method")
    reinforced = method is not None and getattr(method, "type", method) == "reinforcement"
    misfits = [*_without_validation_file(recipe, info)]
    misfits += _not_reinforcement(recipe) if reinforced else _not_supervised(recipe)
    for field, message in misfits:
        raise PydanticCustomError(DOES_NOT_FIT, "{message}", {"field": field, "message": message})
    return recipe


def _without_validation_file(recipe: Recipe, info: ValidationInfo) -> Iterator[Misfit]:
    if "validation_file" not in info.data:
        return
    if info.data["validation_file"] is not None:
        if recipe.validation_split:
            yield (
                "validation_split",
                "cannot be set with a validation_file: remove one of the two",
            )
        return
    if recipe.validation_split:
        return
    needs = {"early_stopping": recipe.early_stopping is not None, "keep": recipe.keep == "best"}
    for field, needed in needs.items():
        if needed:
            yield (
                field,
                "requires evaluations, but there is no validation_file: set validation_file or "
                f"recipe.validation_split, or remove recipe.{field}",
            )


def _not_supervised(recipe: Recipe) -> Iterator[Misfit]:
    for field, value in (("grpo", recipe.grpo), ("rollout", recipe.rollout)):
        if value is not None:
            yield (
                field,
                "is only for reinforcement: set method={'type': 'reinforcement', ...}, or remove "
                f"recipe.{field}",
            )
    if selection_metric(recipe.early_stopping, "supervised") == "valid_reward":
        yield (
            "early_stopping.metric",
            "'valid_reward' is only for reinforcement: use 'valid_loss' or "
            "'valid_mean_token_accuracy'",
        )


def _not_reinforcement(recipe: Recipe) -> Iterator[Misfit]:
    if recipe.packing is True:
        yield (
            "packing",
            "true is only for supervised training: remove recipe.packing. In reinforcement, "
            "recipe.rollout.shared_prompt sets the layout of completions",
        )
    if recipe.assistant_only_loss != "auto":
        yield (
            "assistant_only_loss",
            "is only for supervised training: remove recipe.assistant_only_loss. Reinforcement "
            "trains only generated tokens",
        )
    if recipe.overlong == "truncate":
        yield (
            "overlong",
            "'truncate' is only for supervised training: a truncated prompt would be a different "
            "question. Use 'drop' or 'error'",
        )
    if recipe.from_scratch:
        yield (
            "from_scratch",
            "is only for supervised training: a model with random weights earns no rewards",
        )
    if recipe.patches != "auto" and "loss" not in recipe.patches:
        yield (
            "patches",
            f"{recipe.patches!r} is only for supervised training: reinforcement needs the kernel "
            "'loss', which computes the log-probs. Use 'auto', or a list that contains 'loss'",
        )
    if recipe.quantization == "int8":
        yield (
            "quantization",
            "'int8' is only for supervised training: the rollout engine does not support 8-bit "
            "weights. Use 'nf4' or 'none'",
        )
    if selection_metric(recipe.early_stopping, "reinforcement") != "valid_reward":
        yield (
            "early_stopping.metric",
            "must be 'valid_reward' or 'auto' with reinforcement",
        )
    grpo = recipe.grpo or GRPORecipe()
    length, whole = grpo.max_completion_length, recipe.max_seq_length
    if length != "auto" and whole != "auto" and length >= whole:
        yield (
            "grpo.max_completion_length",
            f"{length} leaves no tokens of recipe.max_seq_length={whole} for a prompt",
        )
    prompts, group = grpo.prompts_per_step, grpo.num_generations
    if prompts != "auto" and group != "auto":
        yield from _not_the_step(recipe, prompts, group)


def _not_the_step(recipe: Recipe, prompts: int, group: int) -> Iterator[Misfit]:
    """Yield an error if the batch size and the number of forward passes do not fit a step of
    `prompts` x `group` completions."""
    rows, passes = recipe.per_device_train_batch_size, recipe.gradient_accumulation_steps
    known = (1 if rows == "auto" else rows) * (1 if passes == "auto" else passes)
    both = "auto" not in (rows, passes)
    if (both and known != prompts * group) or prompts * group % known:
        yield (
            "per_device_train_batch_size" if rows != "auto" else "gradient_accumulation_steps",
            f"per_device_train_batch_size x gradient_accumulation_steps ({rows} x {passes}) must "
            f"give the {prompts * group} completions of a step ({prompts} prompts x {group}): "
            "remove both",
        )


def check_reinforcement(hyperparameters: ReinforcementHyperparameters, recipe: Recipe) -> None:
    """Raise ValueError if a hyperparameter contradicts the recipe field with the same meaning."""
    grpo = recipe.grpo or GRPORecipe()
    pairs = (
        ("batch_size", hyperparameters.batch_size, "grpo.prompts_per_step", grpo.prompts_per_step),
        ("eval_interval", hyperparameters.eval_interval, "eval_steps", recipe.eval_steps),
    )
    for name, value, field, in_recipe in pairs:
        if "auto" not in (value, in_recipe) and value != in_recipe:
            raise ValueError(
                f"hyperparameters.{name}={value} and recipe.{field}={in_recipe} differ: "
                "set only one"
            )
    if "auto" not in (hyperparameters.compute_multiplier, grpo.num_generations):
        raise ValueError(
            "hyperparameters.compute_multiplier scales the automatic number of completions: remove "
            "it, or remove recipe.grpo.num_generations"
        )

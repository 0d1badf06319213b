"""Resolve the "auto" values of a GRPO recipe; resolve_sft.py resolves the values that SFT has too.

Each resolved value is recorded as a `Choice` with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tunesmith_schema import (
    ErrorCode,
    GRPORecipe,
    Hyperparameters,
    Recipe,
    ReinforcementHyperparameters,
)
from tunesmith_schema.grpo import LossType
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices, TrainPlan

from .resolve_sft import check_length, plan_schedule

DEFAULT_GENERATIONS = 8
DEFAULT_PROMPTS = 16
DEFAULT_COMPLETION = 512
_SHARE_FOR_COMPLETION = 4
"""If `max_completion_length` is "auto", a quarter of the context, at most DEFAULT_COMPLETION
tokens, is reserved for completions. Without reserved tokens, a long prompt could leave too few
tokens for completions."""


@dataclass(frozen=True, kw_only=True)
class GRPOPlan:
    """`recipe.grpo` with concrete values; see the fields of GRPORecipe."""

    num_generations: int
    prompts_per_step: int
    max_completion_length: int
    eval_samples: int
    """Number of completions per validation prompt."""
    temperature: float
    top_p: float
    top_k: int
    min_p: float | None
    loss_type: LossType
    beta: float
    epsilon: float
    epsilon_high: float | None
    delta: float | None
    num_iterations: int
    importance_sampling_level: Literal["token", "sequence"]
    scale_rewards: Literal["group", "batch", "none"]
    mask_truncated_completions: bool
    top_entropy_quantile: float

    @property
    def completions_per_step(self) -> int:
        return self.prompts_per_step * self.num_generations


def prompt_limit(recipe: Recipe, context: int | None) -> int | None:
    """Return the maximum prompt length in tokens; None: no limit.

    `context`: the model's context in tokens; None if the model's configuration has no context.
    Raises RunError if the completion leaves no tokens for a prompt."""
    total = _total_length(recipe, context)
    if total is None:
        return None
    completion = (recipe.grpo or GRPORecipe()).max_completion_length
    if completion == "auto":
        return total - min(DEFAULT_COMPLETION, max(1, total // _SHARE_FOR_COMPLETION))
    if completion >= total:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.grpo.max_completion_length={completion} leaves no tokens for "
            f"the prompt: {_limit_name(recipe)} is {total} tokens.",
            hint="Lower recipe.grpo.max_completion_length, or set it to 'auto'.",
            param="recipe.grpo.max_completion_length",
        )
    return total - completion


def plan_grpo(
    recipe: Recipe,
    hyperparameters: Hyperparameters,
    *,
    prompts: int,
    longest_prompt: int,
    context: int | None,
    has_validation: bool,
    choices: Choices,
) -> GRPOPlan:
    """Resolve `recipe.grpo`.

    `prompts`: number of training prompts. `longest_prompt`: length of the longest prompt in tokens,
    at most `prompt_limit`. Raises RunError if a step needs more prompts than the file has."""
    grpo, settings = recipe.grpo or GRPORecipe(), _reinforcement(hyperparameters)
    return GRPOPlan(
        num_generations=_num_generations(grpo, settings, choices),
        prompts_per_step=_prompts_per_step(grpo, settings, prompts, choices),
        max_completion_length=_max_completion_length(
            recipe, grpo, longest_prompt, context, choices
        ),
        eval_samples=choices.resolve("eval_samples", settings.eval_samples, 1, "1 is the fastest")
        if has_validation
        else 1,
        **grpo.model_dump(exclude={"num_generations", "prompts_per_step", "max_completion_length"}),
    )


def plan_grpo_train(
    recipe: Recipe,
    hyperparameters: Hyperparameters,
    plan: GRPOPlan,
    *,
    prompts: int,
    has_validation: bool,
    choices: Choices,
) -> TrainPlan:
    """Return the training plan: steps, learning rate and batch size. A batch contains the
    completions of a step. Prompts that do not fill the last step of an epoch are left out of this
    epoch."""
    interval = _reinforcement(hyperparameters).eval_interval
    if recipe.eval_steps == "auto" and interval != "auto":
        recipe = recipe.model_copy(update={"eval_steps": interval})
    return plan_schedule(
        recipe,
        hyperparameters,
        rows=prompts,
        batch=_batch(recipe, plan, choices),
        steps_per_epoch=prompts // plan.prompts_per_step * plan.num_iterations,
        default_rate=(1e-6, "full reinforcement")
        if recipe.tuning == "full"
        else (1e-5, "LoRA reinforcement"),
        has_validation=has_validation,
        choices=choices,
    )


def _reinforcement(hyperparameters: Hyperparameters) -> ReinforcementHyperparameters:
    if isinstance(hyperparameters, ReinforcementHyperparameters):
        return hyperparameters
    return ReinforcementHyperparameters.model_validate(hyperparameters.model_dump())


def _num_generations(
    grpo: GRPORecipe, settings: ReinforcementHyperparameters, choices: Choices
) -> int:
    count, reason = DEFAULT_GENERATIONS, f"{DEFAULT_GENERATIONS} by default"
    if settings.compute_multiplier != "auto":
        count = max(2, round(count * settings.compute_multiplier))
        reason += f", times compute_multiplier={settings.compute_multiplier:g}"
    return choices.resolve("num_generations", grpo.num_generations, count, reason)


def _prompts_per_step(
    grpo: GRPORecipe, settings: ReinforcementHyperparameters, prompts: int, choices: Choices
) -> int:
    count, reason = min(DEFAULT_PROMPTS, prompts), f"{DEFAULT_PROMPTS} by default"
    if prompts < DEFAULT_PROMPTS:
        reason = f"all {prompts} prompts of the data"
    field = "recipe.grpo.prompts_per_step"
    if settings.batch_size != "auto":
        count, reason = settings.batch_size, f"hyperparameters.batch_size={settings.batch_size}"
        if grpo.prompts_per_step == "auto":
            field = "hyperparameters.batch_size"
    resolved = choices.resolve("prompts_per_step", grpo.prompts_per_step, count, reason)
    if resolved > prompts:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"{field}={resolved} is more than the {prompts} prompts of the training file.",
            hint=f"Set {field} to {prompts} or less, or to 'auto'.",
            param=field,
        )
    return resolved


def _max_completion_length(
    recipe: Recipe,
    grpo: GRPORecipe,
    longest_prompt: int,
    context: int | None,
    choices: Choices,
) -> int:
    total = _total_length(recipe, context)
    left = DEFAULT_COMPLETION if total is None else min(DEFAULT_COMPLETION, total - longest_prompt)
    return choices.resolve(
        "max_completion_length",
        grpo.max_completion_length,
        left,
        f"at most {DEFAULT_COMPLETION} tokens; {_limit_name(recipe)} is {total or 'unknown'} "
        f"tokens, the longest prompt has {longest_prompt}",
    )


def _batch(recipe: Recipe, plan: GRPOPlan, choices: Choices) -> tuple[int, int]:
    total = plan.completions_per_step
    rows, passes = recipe.per_device_train_batch_size, recipe.gradient_accumulation_steps
    known = (1 if rows == "auto" else rows) * (1 if passes == "auto" else passes)
    if total % known or ("auto" not in (rows, passes) and total != known):
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"per_device_train_batch_size x gradient_accumulation_steps ({rows} x {passes}) is "
            f"not the {total} completions of a step ({plan.prompts_per_step} prompts x "
            f"{plan.num_generations}).",
            hint="Leave both fields at 'auto': recipe.grpo defines the size of a step.",
            param="recipe.per_device_train_batch_size",
        )
    per_device = choices.resolve(
        "per_device_train_batch_size",
        rows,
        total if passes == "auto" else total // passes,
        "all completions of a step in one forward pass, if memory allows",
    )
    accumulation = choices.resolve(
        "gradient_accumulation_steps",
        passes,
        total // per_device,
        f"{total} completions per step",
    )
    return per_device, accumulation


def _total_length(recipe: Recipe, context: int | None) -> int | None:
    """Return the maximum tokens of a prompt plus its completion; None: unknown."""
    if recipe.max_seq_length == "auto":
        return context
    check_length(recipe.max_seq_length, context)
    return recipe.max_seq_length


def _limit_name(recipe: Recipe) -> str:
    return "the model's context" if recipe.max_seq_length == "auto" else "recipe.max_seq_length"

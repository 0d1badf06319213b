"""What a recipe leaves open for reinforcement by GRPO, settled: see settle.py for the rest.

Pure functions of their arguments.
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

USUAL_GENERATIONS = 8
USUAL_PROMPTS = 16
USUAL_COMPLETION = 512
_SHARE_FOR_COMPLETION = 4
"""A prompt leaves at least this part of the context (a quarter) to its completion, where
`max_completion_length` is open: else one long prompt would leave none to any."""


@dataclass(frozen=True, kw_only=True)
class GRPOPlan:
    """`recipe.grpo` with nothing left open; its docstrings say what each is."""

    num_generations: int
    prompts_per_step: int
    max_completion_length: int
    eval_samples: int
    """Completions for each prompt of the validation file."""
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
    """Tokens that a prompt may have, so that its completion still fits; None: any number.

    `context` is how many positions the model was made for; None if its config is silent. Raises
    RunError for lengths that leave nothing to a prompt."""
    room = _room(recipe, context)
    if room is None:
        return None
    given = (recipe.grpo or GRPORecipe()).max_completion_length
    if given == "auto":
        return room - min(USUAL_COMPLETION, max(1, room // _SHARE_FOR_COMPLETION))
    if given >= room:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.grpo.max_completion_length={given} leaves nothing of the {room} tokens of "
            f"{_whose(recipe)} to a prompt.",
            hint="Lower it, or leave it at 'auto'.",
            param="recipe.grpo.max_completion_length",
        )
    return room - given


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
    """`prompts` were kept for training, the longest of all of `longest_prompt` tokens, which are
    no more than `prompt_limit`. Raises RunError where there are fewer prompts than a step takes."""
    grpo, asked = recipe.grpo or GRPORecipe(), _reinforcement(hyperparameters)
    return GRPOPlan(
        num_generations=_num_generations(grpo, asked, choices),
        prompts_per_step=_prompts_per_step(grpo, asked, prompts, choices),
        max_completion_length=_max_completion_length(
            recipe, grpo, longest_prompt, context, choices
        ),
        eval_samples=choices.resolve("eval_samples", asked.eval_samples, 1, "one is quick")
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
    """Steps, rate and batch. Its rows are completions: a step has `plan.completions_per_step` of
    them, and what is left of an epoch after its last whole step is not trained."""
    interval = _reinforcement(hyperparameters).eval_interval
    if recipe.eval_steps == "auto" and interval != "auto":
        recipe = recipe.model_copy(update={"eval_steps": interval})
    return plan_schedule(
        recipe,
        hyperparameters,
        rows=prompts,
        batch=_batch(recipe, plan, choices),
        steps_per_epoch=prompts // plan.prompts_per_step * plan.num_iterations,
        usual_rate=(1e-6, "reinforcement of all weights")
        if recipe.tuning == "full"
        else (1e-5, "reinforcement by LoRA"),
        has_validation=has_validation,
        choices=choices,
    )


def _reinforcement(given: Hyperparameters) -> ReinforcementHyperparameters:
    if isinstance(given, ReinforcementHyperparameters):
        return given
    return ReinforcementHyperparameters.model_validate(given.model_dump())


def _num_generations(
    grpo: GRPORecipe, asked: ReinforcementHyperparameters, choices: Choices
) -> int:
    count, reason = USUAL_GENERATIONS, f"{USUAL_GENERATIONS} are usual"
    if asked.compute_multiplier != "auto":
        count = max(2, round(count * asked.compute_multiplier))
        reason += f", times compute_multiplier={asked.compute_multiplier:g}"
    return choices.resolve("num_generations", grpo.num_generations, count, reason)


def _prompts_per_step(
    grpo: GRPORecipe, asked: ReinforcementHyperparameters, prompts: int, choices: Choices
) -> int:
    count, reason = min(USUAL_PROMPTS, prompts), f"{USUAL_PROMPTS} are usual"
    if prompts < USUAL_PROMPTS:
        reason = f"all {prompts} prompts that there are"
    field = "recipe.grpo.prompts_per_step"
    if asked.batch_size != "auto":
        count, reason = asked.batch_size, f"hyperparameters.batch_size={asked.batch_size}"
        if grpo.prompts_per_step == "auto":
            field = "hyperparameters.batch_size"
    settled = choices.resolve("prompts_per_step", grpo.prompts_per_step, count, reason)
    if settled > prompts:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"{field}={settled} is more than the {prompts} prompts there are: no step would be "
            "full.",
            hint=f"Set it to {prompts} or less, or leave it at 'auto'.",
            param=field,
        )
    return settled


def _max_completion_length(
    recipe: Recipe,
    grpo: GRPORecipe,
    longest_prompt: int,
    context: int | None,
    choices: Choices,
) -> int:
    room = _room(recipe, context)
    left = USUAL_COMPLETION if room is None else min(USUAL_COMPLETION, room - longest_prompt)
    return choices.resolve(
        "max_completion_length",
        grpo.max_completion_length,
        left,
        f"at most {USUAL_COMPLETION}; {_whose(recipe)} has {room or 'unknown'} tokens, the longest "
        f"prompt {longest_prompt}",
    )


def _batch(recipe: Recipe, plan: GRPOPlan, choices: Choices) -> tuple[int, int]:
    """Completions of one forward pass, forward passes of one optimiser step."""
    total = plan.completions_per_step
    rows, passes = recipe.per_device_train_batch_size, recipe.gradient_accumulation_steps
    known = (1 if rows == "auto" else rows) * (1 if passes == "auto" else passes)
    if total % known or ("auto" not in (rows, passes) and total != known):
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"per_device_train_batch_size x gradient_accumulation_steps ({rows} x {passes}) does "
            f"not give the {total} completions of a step ({plan.prompts_per_step} prompts x "
            f"{plan.num_generations}).",
            hint="Leave both at 'auto': recipe.grpo says how large a step is.",
            param="recipe.per_device_train_batch_size",
        )
    per_device = choices.resolve(
        "per_device_train_batch_size",
        rows,
        total if passes == "auto" else total // passes,
        "all completions of a step in one forward pass; memory may ask for several",
    )
    accumulation = choices.resolve(
        "gradient_accumulation_steps",
        passes,
        total // per_device,
        f"{total} completions a step",
    )
    return per_device, accumulation


def _room(recipe: Recipe, context: int | None) -> int | None:
    """Tokens of a prompt and its completion together."""
    if recipe.max_seq_length == "auto":
        return context
    check_length(recipe.max_seq_length, context)
    return recipe.max_seq_length


def _whose(recipe: Recipe) -> str:
    return "the model's context" if recipe.max_seq_length == "auto" else "recipe.max_seq_length"

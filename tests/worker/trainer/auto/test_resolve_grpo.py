"""What a recipe leaves open for GRPO: what is chosen, and with what reason."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith_schema import Recipe, ReinforcementHyperparameters
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices, TrainPlan
from tunesmith_worker.trainer.auto.resolve_grpo import (
    GRPOPlan,
    plan_grpo,
    plan_grpo_train,
    prompt_limit,
)


def settle(
    recipe: dict[str, Any] | None = None,  # Any: JSON
    hyperparameters: dict[str, Any] | None = None,
    *,
    prompts: int = 100,
    longest_prompt: int = 70,
    context: int | None = 2048,
    has_validation: bool = True,
) -> tuple[GRPOPlan, TrainPlan, dict[str, str]]:
    """The plans, and the reasons of the choices."""
    whole = Recipe.model_validate(recipe or {})
    knobs = ReinforcementHyperparameters.model_validate(hyperparameters or {})
    choices = Choices()
    plan = plan_grpo(
        whole,
        knobs,
        prompts=prompts,
        longest_prompt=longest_prompt,
        context=context,
        has_validation=has_validation,
        choices=choices,
    )
    train = plan_grpo_train(
        whole, knobs, plan, prompts=prompts, has_validation=has_validation, choices=choices
    )
    return plan, train, {choice.name: choice.reason for choice in choices.made}


def test_everything_can_be_left_open() -> None:
    plan, train, reasons = settle()
    assert (plan.num_generations, plan.prompts_per_step, plan.eval_samples) == (8, 16, 1)
    assert plan.max_completion_length == 512
    assert (plan.loss_type, plan.beta, plan.epsilon, plan.scale_rewards) == (
        "dapo",
        0.0,
        0.2,
        "group",
    )
    assert (train.learning_rate, train.total_steps) == (1e-5, 3 * (100 // 16))
    assert (train.per_device_train_batch_size, train.rows_per_step) == (128, 128)
    assert (train.eval_steps, train.save_steps, train.warmup_steps) == (2, 6, 0)
    assert reasons["num_generations"] == "8 by default"
    assert "2048 tokens, the longest prompt has 70" in reasons["max_completion_length"]
    assert "LoRA reinforcement" in reasons["learning_rate"]


def test_what_was_given_is_kept_and_is_no_choice() -> None:
    grpo = {
        "num_generations": 4,
        "prompts_per_step": 2,
        "max_completion_length": 32,
        "num_iterations": 2,
        "temperature": 0.7,
        "loss_type": "cispo",
        "epsilon_high": 5.0,
        "min_p": 0.1,
    }
    plan, train, reasons = settle({"grpo": grpo, "learning_rate": 1e-3, "num_train_epochs": 1})
    assert {name: getattr(plan, name) for name in grpo} == grpo
    assert plan.completions_per_step == train.rows_per_step == 8
    assert train.total_steps == 100 // 2 * 2, "two optimiser steps on each batch of completions"
    assert train.learning_rate == 1e-3
    assert not reasons.keys() & {*grpo, "learning_rate", "num_train_epochs"}


def test_openai_words_say_the_same() -> None:
    plan, train, reasons = settle(
        {"tuning": "full"},
        {
            "batch_size": 5,
            "compute_multiplier": 0.5,
            "eval_interval": 3,
            "eval_samples": 4,
            "n_epochs": 2,
            "learning_rate_multiplier": 3,
        },
    )
    assert (plan.prompts_per_step, plan.num_generations, plan.eval_samples) == (5, 4, 4)
    assert (train.eval_steps, train.total_steps, train.save_steps) == (3, 2 * 100 // 5, None)
    assert train.learning_rate == pytest.approx(3e-6)
    assert reasons["prompts_per_step"] == "hyperparameters.batch_size=5"
    assert reasons["num_generations"] == "8 by default, times compute_multiplier=0.5"
    assert settle({}, {"compute_multiplier": 0.1})[0].num_generations == 2, "a group is two"


def test_small_data_make_smaller_steps() -> None:
    plan, train, _ = settle(prompts=5)
    assert (plan.prompts_per_step, train.total_steps) == (5, 3)
    _, without, _ = settle(prompts=5, has_validation=False)
    assert without.eval_steps is None


@pytest.mark.parametrize(
    ("recipe", "context", "limit", "completion"),
    [
        # a quarter of the context is a completion's, 512 tokens at most
        ({}, 512, 384, 442),
        ({}, 8192, 7680, 512),
        ({}, None, None, 512),
        ({"max_seq_length": 100}, 512, 75, 30),
        ({"grpo": {"max_completion_length": 64}}, 512, 448, 64),
        ({"grpo": {"max_completion_length": 64}, "max_seq_length": 200}, None, 136, 64),
    ],
)
def test_a_prompt_and_its_completion_fit_together(
    recipe: dict[str, Any], context: int | None, limit: int | None, completion: int
) -> None:
    assert prompt_limit(Recipe.model_validate(recipe), context) == limit
    assert settle(recipe, context=context)[0].max_completion_length == completion


@pytest.mark.parametrize(
    ("recipe", "hyperparameters", "param", "said"),
    [
        ({"grpo": {"prompts_per_step": 101}}, {}, "recipe.grpo.prompts_per_step", "the 100 prom"),
        ({}, {"batch_size": 101}, "hyperparameters.batch_size", "=101 is more than the 100"),
        ({"max_seq_length": 4096}, {}, "recipe.max_seq_length", "context of 2048"),
        (
            {"per_device_train_batch_size": 3},
            {},
            "recipe.per_device_train_batch_size",
            r"\(3 x auto\) is not the 128 completions of a step \(16 prompts x 8\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    recipe: dict[str, Any], hyperparameters: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(RunError, match=said) as refused:
        settle(recipe, hyperparameters)
    assert refused.value.failure.param == param


def test_a_completion_leaves_room_for_a_prompt() -> None:
    recipe = Recipe.model_validate({"grpo": {"max_completion_length": 512}})
    with pytest.raises(RunError, match="=512 leaves no tokens for the prompt: the model's"):
        prompt_limit(recipe, 512)


def test_passes_are_made_to_fit_what_was_given() -> None:
    for given, passes in (
        ({"gradient_accumulation_steps": 4}, (32, 4)),
        ({"per_device_train_batch_size": 64}, (64, 2)),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 128}, (1, 128)),
    ):
        _, train, _ = settle(given)
        assert (train.per_device_train_batch_size, train.gradient_accumulation_steps) == passes

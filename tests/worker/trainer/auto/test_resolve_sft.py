"""What "auto" becomes, and that it is written down."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith_schema import Choice, ErrorCode, Hyperparameters, Plan, Recipe
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices, Device, TrainPlan
from tunesmith_worker.trainer.auto.resolve_sft import plan_data, plan_load, plan_train

CPU = Device(name="cpu", is_gpu=False, has_bf16=False)
GPU = Device(name="H200", is_gpu=True, has_bf16=True)


def train_plan(
    recipe: dict[str, Any] | None = None,  # Any: JSON
    hyperparameters: dict[str, Any] | None = None,
    *,
    rows: int = 1000,
    has_validation: bool = False,
    choices: Choices | None = None,
) -> TrainPlan:
    return plan_train(
        Recipe.model_validate(recipe or {}),
        Hyperparameters.model_validate(hyperparameters or {}),
        rows=rows,
        sequences=rows,
        has_validation=has_validation,
        choices=choices or Choices(),
    )


def test_a_gpu_gets_bf16_a_cpu_does_not() -> None:
    on_cpu, on_gpu = (plan_load(Recipe(), device, Choices()) for device in (CPU, GPU))
    assert (on_cpu.precision, on_gpu.precision) == ("fp32", "bf16")


def test_full_tuning_on_a_gpu_keeps_error_words() -> None:
    full = Recipe(tuning="full")
    without = Device(name="T4", is_gpu=True, has_bf16=False)
    found = [plan_load(full, device, Choices()).precision for device in (CPU, GPU, without)]
    assert found == ["fp32", "bf16_split_master", "fp32"]


@pytest.mark.parametrize(("context", "length"), [(512, 512), (8192, 2048), (None, 2048)])
def test_length_is_the_context_but_at_most_2048(context: int | None, length: int) -> None:
    assert plan_data(Recipe(), context, Choices()).max_seq_length == length


def test_more_than_the_context_is_refused() -> None:
    with pytest.raises(RunError, match="more than the model's context of 512") as caught:
        plan_data(Recipe(max_seq_length=513), 512, Choices())
    assert caught.value.failure.code == ErrorCode.RECIPE_INVALID
    assert caught.value.failure.param == "recipe.max_seq_length"


@pytest.mark.parametrize(
    ("recipe", "rate"),
    [({}, 2e-4), ({"tuning": "full"}, 2e-5), ({"tuning": "full", "from_scratch": True}, 1e-3)],
)
def test_the_rate_follows_the_kind_of_tuning_and_the_multiplier(
    recipe: dict[str, Any], rate: float
) -> None:
    assert train_plan(recipe).learning_rate == rate
    assert train_plan(recipe, {"learning_rate_multiplier": 0.5}).learning_rate == rate * 0.5


@pytest.mark.parametrize(
    ("recipe", "hyperparameters", "rows", "expected"),
    [
        ({}, {}, 1000, (8, 2)),
        ({}, {}, 100, (6, 1)),
        ({}, {}, 5, (1, 1)),
        ({}, {"batch_size": 12}, 1000, (6, 2)),
        ({}, {"batch_size": 7}, 1000, (7, 1)),
        ({}, {"batch_size": 13}, 1000, (1, 13)),
        ({"per_device_train_batch_size": 4}, {}, 1000, (4, 4)),
        ({"per_device_train_batch_size": 32}, {}, 1000, (32, 1)),
        ({"gradient_accumulation_steps": 4}, {}, 1000, (4, 4)),
        ({"gradient_accumulation_steps": 4}, {"batch_size": 64}, 1000, (16, 4)),
        ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}, {}, 9, (2, 3)),
    ],
)
def test_batch(
    recipe: dict[str, Any], hyperparameters: dict[str, Any], rows: int, expected: tuple[int, int]
) -> None:
    plan = train_plan(recipe, hyperparameters, rows=rows)
    assert (plan.per_device_train_batch_size, plan.gradient_accumulation_steps) == expected


def test_batch_sizes_that_disagree_are_refused() -> None:
    with pytest.raises(RunError, match=r"batch_size=10 is not .* \(4 x auto\)"):
        train_plan({"per_device_train_batch_size": 4}, {"batch_size": 10})


@pytest.mark.parametrize(
    ("recipe", "hyperparameters", "rows", "steps"),
    [
        ({}, {}, 1000, 3 * 63),
        ({}, {}, 10_001, 626),
        ({}, {"n_epochs": 2}, 1000, 2 * 63),
        ({"num_train_epochs": 0.1}, {"batch_size": 1}, 30, 3),
        ({"num_train_epochs": 0.001}, {}, 30, 1),
        ({"max_steps": 5}, {}, 1000, 5),
    ],
)
def test_steps(
    recipe: dict[str, Any], hyperparameters: dict[str, Any], rows: int, steps: int
) -> None:
    assert train_plan(recipe, hyperparameters, rows=rows).total_steps == steps


def test_warm_up_evaluation_and_checkpoints() -> None:
    plan = train_plan(has_validation=True)
    assert (plan.warmup_steps, plan.eval_steps, plan.save_steps) == (5, 19, 63)
    assert train_plan({"tuning": "full"}).save_steps is None
    assert train_plan().eval_steps is None


def test_only_what_was_left_open_is_a_choice() -> None:
    told: list[Choice] = []
    choices = Choices(on_choice=told.append)
    train_plan({"learning_rate": 1e-3, "max_steps": 3, "warmup_steps": 0}, choices=choices)
    assert [choice.name for choice in choices.made] == [
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "lr_scheduler_type",
        "save_steps",
    ]
    assert told == choices.made
    assert all(choice.reason for choice in told)


def test_choices_of_an_earlier_attempt_are_taken_again() -> None:
    earlier = Plan(
        made_for="0" * 64,
        choices=[Choice(name="learning_rate", value=0.5, reason="because")],
    )
    told: list[Choice] = []
    choices = Choices(earlier, on_choice=told.append)
    assert train_plan(choices=choices).learning_rate == 0.5
    assert earlier.choices[0] in choices.made
    reasons = {choice.name: choice.reason for choice in told}
    assert reasons["learning_rate"] == "reused from plan.json: because"
    assert reasons["lr_scheduler_type"] == "linear decay to zero", "settled by this run"


def test_a_replaced_choice_reaches_readers_of_the_list() -> None:
    """The run report keeps the list from before the first step."""
    choices = Choices()
    read = choices.made
    choices.add(Choice(name="packing", value="packed", reason="fast"))
    choices.replace(Choice(name="packing", value="padding_free", reason="memory"))
    assert [choice.value for choice in read] == ["padding_free"]

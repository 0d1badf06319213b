"""Recipes that do not fit the method of their job, in a create body and in a run directory."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tunesmith_schema import Hyperparameters, JobCreate, ReinforcementHyperparameters, RunSpec
from tunesmith_schema.early_stopping import selection_metric
from tunesmith_schema.field_errors import field_errors
from tunesmith_schema.retention import selection_loss

GRADER = {"type": "math_answer", "reference": "{{item.answer}}"}
SPEC = {"job_id": "j", "attempt": 1, "model": "m", "model_path": "m", "training_file": "t"}


def create(**body: Any) -> JobCreate:  # Any: JSON
    return JobCreate.model_validate({"model": "m", "training_file": "file-1", **body})


def reinforcement(**hyperparameters: Any) -> dict[str, Any]:
    member = {"grader": GRADER, "hyperparameters": hyperparameters}
    return {"type": "reinforcement", "reinforcement": member}


def run(**spec: Any) -> RunSpec:
    return RunSpec.model_validate({**SPEC, **spec})


FOR_SUPERVISED = [
    # recipe, the field that is named
    ({"packing": True}, "packing"),
    ({"assistant_only_loss": True}, "assistant_only_loss"),
    ({"assistant_only_loss": False}, "assistant_only_loss"),
    ({"overlong": "truncate"}, "overlong"),
    ({"from_scratch": True, "tuning": "full"}, "from_scratch"),
    ({"patches": "off"}, "patches"),
    ({"patches": ["attention_block", "mlp_block"]}, "patches"),
    ({"quantization": "int8"}, "quantization"),
    ({"early_stopping": {"metric": "valid_loss"}}, "early_stopping.metric"),
    ({"early_stopping": {"metric": "valid_mean_token_accuracy"}}, "early_stopping.metric"),
]
FOR_REINFORCEMENT = [
    ({"grpo": {}}, "grpo"),
    ({"rollout": {"shared_prompt": False}}, "rollout"),
    ({"early_stopping": {"metric": "valid_reward"}}, "early_stopping.metric"),
]
NEVER = [
    ({"grpo": {"max_completion_length": 64}, "max_seq_length": 64}, "grpo.max_completion_length"),
    (
        {"grpo": {"prompts_per_step": 2, "num_generations": 4}, "per_device_train_batch_size": 3},
        "per_device_train_batch_size",
    ),
    (
        {"grpo": {"prompts_per_step": 2, "num_generations": 4}, "gradient_accumulation_steps": 16},
        "gradient_accumulation_steps",
    ),
]


@pytest.mark.parametrize(
    ("recipe", "field", "fits"),
    [
        *((recipe, field, "supervised") for recipe, field in FOR_SUPERVISED),
        *((recipe, field, "reinforcement") for recipe, field in FOR_REINFORCEMENT),
        *((recipe, field, None) for recipe, field in NEVER),
    ],
)
def test_a_field_of_another_method_is_refused_by_name(
    recipe: dict[str, Any], field: str, fits: str | None
) -> None:
    files = {"validation_file": "file-2"}
    makers: dict[str, list[Any]] = {
        "supervised": [
            lambda: create(recipe=recipe, **files),
            lambda: create(recipe=recipe, method={"type": "supervised"}, **files),
            lambda: run(recipe=recipe, **files),
        ],
        "reinforcement": [
            lambda: create(recipe=recipe, method=reinforcement(), **files),
            lambda: run(recipe=recipe, method="reinforcement", grader=GRADER, **files),
        ],
    }
    for method, of_method in makers.items():
        for make in of_method:
            if method == fits:
                make()
                continue
            with pytest.raises(ValidationError) as refused:
                make()
            named = "grpo" if method == "supervised" and "grpo" in recipe else field
            assert field_errors(refused.value.errors())[0].name == f"recipe.{named}"


@pytest.mark.parametrize(
    ("hyperparameters", "recipe", "said"),
    [
        ({"batch_size": 4}, {"grpo": {"prompts_per_step": 2}}, "batch_size=4 and recipe.grpo.prom"),
        ({"batch_size": 4}, {"grpo": {"prompts_per_step": 4}}, None),
        ({"batch_size": 4}, {"per_device_train_batch_size": 3}, None),
        ({"eval_interval": 4}, {"eval_steps": 2}, "eval_interval=4 and recipe.eval_steps=2 differ"),
        ({"eval_interval": 4}, {"eval_steps": 4}, None),
        ({"compute_multiplier": 2}, {"grpo": {"num_generations": 4}}, "remove it"),
        ({"compute_multiplier": 2}, {"grpo": {"prompts_per_step": 4}}, None),
        ({"n_epochs": 2}, {"num_train_epochs": 3}, "n_epochs=2"),
    ],
)
def test_two_words_for_one_thing_must_agree(
    hyperparameters: dict[str, Any], recipe: dict[str, Any], said: str | None
) -> None:
    if said is None:
        made = create(method=reinforcement(**hyperparameters), recipe=recipe)
        for name, value in hyperparameters.items():
            assert getattr(made.chosen_hyperparameters(), name) == value
        return
    with pytest.raises(ValidationError, match=said):
        create(method=reinforcement(**hyperparameters), recipe=recipe)


def test_hyperparameters_in_the_older_place_are_those_of_the_method() -> None:
    method = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
    chosen = create(method=method, hyperparameters={"batch_size": 4}).chosen_hyperparameters()
    assert chosen == ReinforcementHyperparameters(batch_size=4)
    both = reinforcement(batch_size=4, eval_samples=2)
    create(method=both, hyperparameters={"batch_size": 4})
    with pytest.raises(ValidationError, match="differ: set only one"):
        create(method=both, hyperparameters={"batch_size": 5})


def test_a_spec_keeps_its_hyperparameters_through_its_file() -> None:
    for knobs in (Hyperparameters(n_epochs=2), ReinforcementHyperparameters(eval_samples=3)):
        method = "supervised" if type(knobs) is Hyperparameters else "reinforcement"
        written = run(method=method, hyperparameters=knobs).model_dump_json()
        assert RunSpec.model_validate_json(written).hyperparameters == knobs


def test_a_supervised_run_has_no_grader() -> None:
    with pytest.raises(ValidationError, match="grader is only for method='reinforcement'"):
        run(grader=GRADER)


def test_what_is_judged_follows_the_method() -> None:
    best = {"early_stopping": {}, "keep": "best"}
    made = create(recipe=best, validation_file="file-2", method=reinforcement()).recipe
    assert selection_metric(made.early_stopping, "reinforcement") == "valid_reward"
    assert selection_metric(made.early_stopping, "supervised") == "valid_loss"
    assert selection_metric(None, "reinforcement") == "valid_reward"
    rewards = [{"valid_reward": value} for value in (0.2, 0.6, 0.4)]
    assert min(rewards, key=lambda one: selection_loss(one) or 0.0) == {"valid_reward": 0.6}
    assert selection_loss({"valid_loss": 2.0}) == 2.0
    assert selection_loss({}) is None

"""The create body: bounds, and two words for one thing that differ."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from tunesmith_schema import Hyperparameters, JobCreate
from tunesmith_schema.field_errors import field_errors


def create(**body: Any) -> JobCreate:
    return JobCreate.model_validate({"model": "m", "training_file": "file-1", **body})


@pytest.mark.parametrize(
    "body",
    [
        {"model": ""},
        {"model": "x" * 513},
        {"model": "a\0b"},
        {"model": None},
        {"training_file": None},
        {"suffix": ""},
        {"suffix": "x" * 65},
        {"suffix": "\0"},
        {"seed": -1},
        {"seed": 2**31},
        {"metadata": {str(i): "x" for i in range(17)}},
        {"metadata": {"k" * 65: "x"}},
        {"metadata": {"k": "x" * 513}},
        {"metadata": {"k": 1}},
        {"metadata": {"k": "\0"}},
        {"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]},
        {"method": {"type": "reinforcement"}},
        {"method": {}},
    ],
)
def test_a_value_out_of_bounds_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        create(**body)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "x" * 512},
        {"suffix": "A-z_0.9 / any: text"},
        {"seed": 2**31 - 1},
        {"metadata": {str(i) * 60: "x" * 512 for i in range(9)}},
        {"metadata": {}},
        {"integrations": []},
        {"integrations": None},
        {"method": {"type": "supervised"}},
        {"method": {"type": "supervised", "supervised": {}}},
    ],
)
def test_a_value_at_its_bound_is_accepted(body: dict[str, Any]) -> None:
    create(**body)


@pytest.mark.parametrize(
    ("field", "accepted", "refused"),
    [
        ("n_epochs", [1, 1000, "auto"], [0, 1001, 1.5, "many"]),
        ("batch_size", [1, 65_536, "auto"], [0, 65_537]),
        ("learning_rate_multiplier", [0.01, 1000, "auto"], [0, -1, 1001]),
    ],
)
def test_hyperparameters_have_bounds(field: str, accepted: list[Any], refused: list[Any]) -> None:
    for value in accepted:
        assert getattr(Hyperparameters.model_validate({field: value}), field) == value
    for value in refused:
        with pytest.raises(ValidationError):
            Hyperparameters.model_validate({field: value})


CONFLICTS: list[tuple[dict[str, Any], dict[str, Any], str | None]] = [
    # hyperparameters, recipe, what the refusal says (None: they agree)
    ({"n_epochs": 3}, {"num_train_epochs": 2}, "n_epochs=3"),
    ({"n_epochs": 3}, {"num_train_epochs": 3}, None),
    ({"n_epochs": 3}, {}, None),
    ({}, {"num_train_epochs": 2.5}, None),
    ({"n_epochs": "auto"}, {"num_train_epochs": 2}, None),
    ({"n_epochs": 3}, {"max_steps": 10}, "both set the length"),
    ({}, {"max_steps": 10}, None),
    ({"learning_rate_multiplier": 2}, {"learning_rate": 1e-4}, "remove it"),
    ({"learning_rate_multiplier": 2}, {}, None),
    ({"batch_size": 8}, {"per_device_train_batch_size": 3}, "batch_size=8"),
    ({"batch_size": 8}, {"per_device_train_batch_size": 4}, None),
    ({"batch_size": 8}, {"per_device_train_batch_size": 16}, "batch_size=8"),
    ({"batch_size": 8}, {"gradient_accumulation_steps": 5}, "batch_size=8"),
    ({"batch_size": 8}, {"gradient_accumulation_steps": 2}, None),
    (
        {"batch_size": 8},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        None,
    ),
    (
        {"batch_size": 8},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        "2 x 2",
    ),
    (
        {"batch_size": 8},
        {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
        "8 x 2",
    ),
]


@pytest.mark.parametrize("where", ["hyperparameters", "method"])
@pytest.mark.parametrize(("given", "recipe", "said"), CONFLICTS)
def test_two_words_for_one_thing_must_agree(
    given: dict[str, Any], recipe: dict[str, Any], said: str | None, where: str
) -> None:
    body: dict[str, Any] = {"recipe": recipe, "hyperparameters": given}
    if where == "method":
        method = {"type": "supervised", "supervised": {"hyperparameters": given}}
        body = {"recipe": recipe, "method": method}
    if said is None:
        assert create(**body).chosen_hyperparameters() == Hyperparameters.model_validate(given)
        return
    with pytest.raises(ValidationError, match=said):
        create(**body)


def test_hyperparameters_given_twice_must_agree() -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}
    create(method=method, hyperparameters={"n_epochs": 2})
    with pytest.raises(ValidationError, match="differ: set only one"):
        create(method=method, hyperparameters={"n_epochs": 3})


@pytest.mark.parametrize(
    ("recipe", "field"),
    [
        ({"early_stopping": {}}, "early_stopping"),
        ({"keep": "best"}, "keep"),
        ({"early_stopping": {"patience": 1}, "keep": "best"}, "early_stopping"),
    ],
)
def test_what_judges_by_evaluations_needs_a_validation_file(
    recipe: dict[str, Any], field: str
) -> None:
    create(recipe=recipe, validation_file="file-2")
    create(recipe={**recipe, "validation_split": 0.1})
    create(recipe={"early_stopping": None, "keep": "last"})
    with pytest.raises(ValidationError) as caught:
        create(recipe=recipe)
    (complaint,) = field_errors(caught.value.errors())
    assert complaint.name == f"recipe.{field}"
    assert "no validation_file: set validation_file or recipe.validation_split" in complaint.message


def test_rows_are_split_off_only_without_a_validation_file() -> None:
    with pytest.raises(ValidationError) as caught:
        create(recipe={"validation_split": 0.1}, validation_file="file-2")
    (complaint,) = field_errors(caught.value.errors())
    assert complaint.name == "recipe.validation_split"


def test_without_hyperparameters_all_are_automatic() -> None:
    assert create().chosen_hyperparameters() == Hyperparameters()
    assert create(method={"type": "supervised"}).chosen_hyperparameters() == Hyperparameters()

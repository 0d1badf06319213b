"""The contract documents itself: every class, member of a closed set and field says what it is."""

from __future__ import annotations

import ast
import inspect
import sys
from enum import StrEnum
from pathlib import Path

import pytest
from pydantic import BaseModel

import tunesmith_schema as schema
from tunesmith_schema import Page, Request

MODELS = [
    model
    for model in (getattr(schema, name) for name in schema.__all__)
    if isinstance(model, type) and issubclass(model, BaseModel)
]
SELF_EXPLAINING = {
    *("id", "object", "created_at", "deleted", "message", "level", "seed", "model"),
    *("job_id", "file_id", "worker_id", "attempt", "fence", "step", "filename", "bytes", "sha256"),
}
"""Names that mean the same wherever they stand; their format is a matter of the API's rules."""


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_is_described(model: type[BaseModel]) -> None:
    bare = [
        name
        for name, field in model.model_fields.items()
        if not field.description and name not in SELF_EXPLAINING
    ]
    assert bare == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_model_is_described(model: type[BaseModel]) -> None:
    assert vars(model)["__doc__"], "inherited words do not count"


def test_what_a_user_writes_is_described_without_exception() -> None:
    recipe = (schema.Recipe, schema.LoraRecipe, schema.EarlyStoppingRecipe)
    for model in (schema.JobCreate, *recipe, schema.Hyperparameters):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_a_json_schema_can_be_made(model: type[BaseModel]) -> None:
    made = (Page[schema.Job] if model is Page else model).model_json_schema()
    assert made["type"] == "object"
    if issubclass(model, Request):
        assert made["additionalProperties"] is False
    if model is not Page:
        for name, field in model.model_fields.items():
            shown = made["properties"][field.alias or name]
            if "description" not in shown:  # left out if it equals that of the referenced model
                shown = made.get("$defs", {}).get(shown.get("$ref", "").rpartition("/")[2], {})
            assert shown.get("description") == field.description or not field.description, name


def test_every_public_name_exists_once_and_in_order() -> None:
    assert len(set(schema.__all__)) == len(schema.__all__)
    assert all(hasattr(schema, name) for name in schema.__all__)


def test_codes_are_words_in_snake_case() -> None:
    enums = [
        value
        for value in vars(schema).values()
        if isinstance(value, type) and issubclass(value, StrEnum) and value is not StrEnum
    ]
    assert len(enums) >= 6
    for enum in enums:
        assert inspect.getdoc(enum)
        for member in enum:
            assert member.value.replace("-", "_").isidentifier(), member


def test_the_contract_needs_pydantic_alone() -> None:
    """So that the client's wheel stays small. Celery loads the broker's transport by its name."""
    needed = {"pydantic", "pydantic_core", *sys.stdlib_module_names}
    folder = Path(inspect.getfile(schema)).parent
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            also = {"kombu"} if file.name == "folder_broker.py" else set()
            assert {name.split(".")[0] for name in names} <= needed | also, file.name
            assert not any(name.endswith("folder_broker") for name in names), file.name

"""Files that carry the version of their form: spec.json, plan.json, manifests of resume points."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from tunesmith_schema import Plan, Recipe, RunSpec
from tunesmith_schema.documents import DOCUMENT_VERSION, VERSION_FIELD, read_file, upgraded_file
from tunesmith_worker.rundir.resume_point import Manifest, RunIdentity

RECIPE = Recipe(tuning="full", precision="bf16_split_master", learning_rate=1e-4)
CHOICE = {"name": "precision", "value": "bf16_split_master", "reason": "r", "figures": {}}
DOCUMENTS: dict[str, BaseModel] = {
    "spec.json": RunSpec(
        job_id="ftjob-1", attempt=1, model="m", model_path="m", training_file="t", recipe=RECIPE
    ),
    "plan.json": Plan.model_validate({"made_for": "x", "choices": [CHOICE]}),
    "manifest.json": Manifest(
        step=3,
        made_for=RunIdentity(
            model="m", base_model="b", training_file="t", validation_file=None, seed=0,
            recipe=RECIPE.model_dump(mode="json"), hyperparameters={},
        ),
        made_with={},
        files={},
    ),
}  # fmt: skip


def written(name: str, **changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(DOCUMENTS[name].model_dump_json())
    return document | changes


def read(name: str, document: Any, *, strict: bool = False) -> BaseModel:
    return read_file(type(DOCUMENTS[name]), json.dumps(document).encode(), strict=strict)


def former(document: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(document)
    assert "bf16_split_master" in text
    changed: dict[str, Any] = json.loads(text.replace("bf16_split_master", "bf16_error_word"))
    return changed


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_carries_its_version_and_is_read_as_it_was_written(name: str) -> None:
    assert written(name)[VERSION_FIELD] == DOCUMENT_VERSION
    assert read(name, written(name)) == DOCUMENTS[name]


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("version", [None, 1])
def test_a_file_of_version_1_is_upgraded(name: str, version: int | None) -> None:
    document = former(written(name))
    del document[VERSION_FIELD]
    if version is not None:
        document[VERSION_FIELD] = version
    assert read(name, document) == DOCUMENTS[name]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_of_this_version_is_not_upgraded(name: str) -> None:
    document = former(written(name))
    assert upgraded_file(document) == document
    if name == "spec.json":
        with pytest.raises(ValidationError, match="is now called"):
            read(name, document)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_file_of_a_newer_release_may_have_more_fields(name: str) -> None:
    document = written(name, document_version=DOCUMENT_VERSION + 1, later="?")
    same = read(name, document).model_copy(update={VERSION_FIELD: DOCUMENT_VERSION})
    assert same.model_dump() == DOCUMENTS[name].model_dump()


def test_a_spec_is_refused_for_an_unknown_field_because_users_write_specs() -> None:
    with pytest.raises(ValidationError, match="later"):
        read("spec.json", written("spec.json", later="?"), strict=True)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"recipe": {"precision": "bf17"}}'])
def test_an_invalid_file_raises_the_models_own_error(content: bytes) -> None:
    with pytest.raises(ValidationError) as expected:
        RunSpec.model_validate_json(content)
    with pytest.raises(ValidationError) as caught:
        read_file(RunSpec, content, strict=True)
    names = [(error["type"], error["loc"]) for error in caught.value.errors()]
    assert names == [(error["type"], error["loc"]) for error in expected.value.errors()]

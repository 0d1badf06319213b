"""Former names: refused in requests, read in stored documents."""

from __future__ import annotations

import hashlib

import pytest
from pydantic import ValidationError

from tunesmith_schema import Recipe, RunSpec
from tunesmith_schema.renames import (
    RENAMED_VALUES,
    check_current,
    current_names,
    former_names,
)

FORMER = [(field, *pair) for field, values in RENAMED_VALUES.items() for pair in values.items()]
SPEC = RunSpec(
    job_id="ftjob-1",
    attempt=1,
    model="m",
    model_path="m",
    training_file="t",
    recipe=Recipe(tuning="full", precision="bf16_split_master", learning_rate=1e-4),
)
NOT_HASHED = {
    "document_version", "job_id", "attempt", "model_path", "forked", "training_file_name",
    "validation_file_name",
}  # fmt: skip


@pytest.mark.parametrize(("field", "former", "current"), FORMER)
def test_a_request_with_a_former_name_is_refused_with_the_current_one(
    field: str, former: str, current: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Recipe.model_validate({"tuning": "full", field: former})
    errors = caught.value.errors()
    assert {error["loc"][0] for error in errors} == {field}
    assert current in errors[0]["msg"]
    check_current(field, current)


@pytest.mark.parametrize(("field", "former", "current"), FORMER)
def test_names_are_replaced_at_any_depth_and_only_in_their_field(
    field: str, former: str, current: str
) -> None:
    stored = {
        "recipe": {field: former, "add_tokens": [former]},
        "choices": [{"name": field, "value": former}, {"name": "patches", "value": former}],
        "metrics": {"step": 1, "valid_loss": None},
    }
    read = current_names(stored)
    assert read["recipe"] == {field: current, "add_tokens": [former]}
    assert [choice["value"] for choice in read["choices"]] == [current, former]
    assert read["metrics"] == stored["metrics"]
    assert former_names(read) == stored


def test_a_rename_does_not_change_the_digest_of_a_spec() -> None:
    text = SPEC.model_dump_json(
        exclude={
            **dict.fromkeys(NOT_HASHED, True),
            "recipe": {"max_seconds", "evaluate", "validation_split"},
        }
    )
    former = text.replace("bf16_split_master", "bf16_error_word")
    assert SPEC.sha256() == hashlib.sha256(former.encode()).hexdigest()

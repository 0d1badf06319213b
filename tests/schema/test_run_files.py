"""The files of a run directory and the worker's messages: what is written is what is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tunesmith_schema import (
    Choice,
    ControlAction,
    ControlFile,
    ErrorCategory,
    ErrorCode,
    EventKind,
    Hyperparameters,
    JobFailure,
    LoraRecipe,
    Outcome,
    Plan,
    Recipe,
    Report,
    Request,
    RunEvent,
    RunResult,
    RunSpec,
    StoredFile,
)
from tunesmith_schema.queue import celery_broker

SHA256 = "0123456789abcdef" * 4

WRITTEN: list[Request] = [
    RunSpec(
        job_id="ftjob-1",
        attempt=2,
        model="m",
        model_path="/models/m",
        training_file="data/training.jsonl",
        recipe=Recipe(lora=LoraRecipe(r=4), learning_rate=1e-4, packing=True),
        hyperparameters=Hyperparameters(n_epochs=2),
        seed=7,
    ),
    Plan(
        made_for=SHA256,
        choices=[Choice(name="n", value={"a": [1]}, reason="measured", figures={"x": 1.5})],
    ),
    RunEvent(
        source_seq=1,
        created_at=1.25,
        kind=EventKind.CHECKPOINT,
        level="warn",
        message="ümläut",
        data={"step": 1, "metrics": {"train_loss": None}},
        files=[StoredFile(name="a.safetensors", bytes=0, sha256=SHA256)],
    ),
    RunResult(
        outcome="failed",
        error=JobFailure(
            category=ErrorCategory.DATA, code=ErrorCode.NO_TRAINABLE_TOKENS, message="none"
        ),
        metrics={"train_loss": None, "grad_norm": 1.0},
    ),
    ControlFile(action=ControlAction.CANCEL),
    Report(
        worker_id="w", attempt=1, fence=1, phase="train", outcome=Outcome(state="released")
    ),
]  # fmt: skip


@pytest.mark.parametrize("document", WRITTEN, ids=lambda document: type(document).__name__)
def test_what_is_written_is_what_is_read(document: Request) -> None:
    text = document.model_dump_json()
    assert "\n" not in text, "a line of events.jsonl is one line"
    assert type(document).model_validate_json(text) == document


def test_a_minimal_spec_has_defaults() -> None:
    spec = RunSpec(job_id="j", attempt=1, model="m", model_path="m", training_file="t")
    assert (spec.recipe, spec.hyperparameters, spec.seed) == (Recipe(), Hyperparameters(), 0)


def test_messages_name_a_data_file_as_the_user_does() -> None:
    fields = {"job_id": "j", "attempt": 1, "model": "m", "model_path": "m"}
    bare = RunSpec.model_validate({**fields, "training_file": "data/t.csv"})
    named = bare.model_copy(
        update={"training_file_name": "my notes.csv", "validation_file": "data/v.csv"}
    )
    assert bare.display_name("data/t.csv") == "t.csv"
    assert [named.display_name(f"data/{file}.csv") for file in "tv"] == ["my notes.csv", "v.csv"]
    assert named.model_copy(update={"validation_file": None}).sha256() == bare.sha256()


@pytest.mark.parametrize(
    "name", ["", "..", ".hidden", "a/b", "a\\b", "/a", "a b", "a\n", "-a", "ü", "x" * 100]
)
def test_a_stored_file_has_a_plain_name(name: str) -> None:
    with pytest.raises(ValidationError):
        StoredFile(name=name, bytes=1, sha256=SHA256)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"])
def test_a_hash_is_64_small_hexadecimal_digits(sha256: str) -> None:
    with pytest.raises(ValidationError):
        StoredFile(name="a", bytes=1, sha256=sha256)


@pytest.mark.parametrize("created_at", [-1, float("nan"), float("inf")])
def test_a_time_is_a_time(created_at: float) -> None:
    with pytest.raises(ValidationError):
        RunEvent(source_seq=1, created_at=created_at, message="m")


@pytest.mark.parametrize("field", ["attempt", "fence"])
def test_attempts_and_fences_count_from_one(field: str) -> None:
    with pytest.raises(ValidationError):
        Report.model_validate({"worker_id": "w", "attempt": 1, "fence": 1, field: 0})


def test_a_broker_url_passes_through_unless_it_is_a_folder() -> None:
    settings = celery_broker("redis://host:6379/0")
    assert settings["broker_url"] == "redis://host:6379/0"
    assert settings["broker_transport_options"]["socket_connect_timeout"] == 2
    settings = celery_broker("filesystem:///a/b")
    assert settings["broker_url"] == "filesystem://"
    assert settings["broker_transport_options"]["data_folder_in"] == "/a/b"

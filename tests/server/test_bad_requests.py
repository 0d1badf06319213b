"""Invalid requests: status, code, field, reason and remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from httpx2 import Response

from tunesmith_schema import ErrorEnvelope
from tunesmith_server.services import keys

from .actors import Server, new_key
from .callers import Caller

Ask = Callable[[Server], Response]


def create(**body: Any) -> Ask:  # Any: JSON
    return lambda server: server.create_reply(server.good_file(), **body)


def recipe(**fields: Any) -> Ask:  # Any: JSON
    return create(recipe=fields)


def upload(content: bytes, purpose: str = "fine-tune") -> Ask:
    return lambda server: server.user.post(
        "/v1/files", files={"file": ("rows.jsonl", content)}, data={"purpose": purpose}
    )


def delete_in_use(server: Server) -> Response:
    file_id = server.good_file()
    server.create_job(file_id)
    return server.user.delete(f"/v1/files/{file_id}")


def with_deleted_file(server: Server) -> Response:
    file_id = server.good_file()
    assert server.user.delete(f"/v1/files/{file_id}").status_code == 200
    return server.create_reply(file_id)


def with_revoked_key(server: Server) -> Response:
    key = new_key(server.database, "bob")
    with server.database.write.begin() as session:
        [row] = [row for row in keys.list_all(session) if row.name == "bob"]
        keys.revoke(session, row.id)
    return Caller(server.client, key).get("/v1/files")


CASES: dict[str, tuple[Ask, int, str, str | None, str, str]] = {
    "an empty file": (
        upload(b""), 400, "invalid_request", "file", "'rows.jsonl' is empty", "check the path",
    ),
    "an unknown purpose": (
        upload(b"x", "fun"), 400, "invalid_request", "purpose", "'fun'", "/docs",
    ),
    "a body over the limit": (
        upload(b"x" * 200_000), 413, "request_too_large", None, "the limit is 165,536",
        "in parts",
    ),
    "a file with a bad row": (
        lambda server: server.create_reply(server.bad_file()), 400, "invalid_training_file",
        "training_file", "row 1: not JSON", "validation.problems",
    ),
    "an unknown file": (
        create(training_file="file-none"), 400, "not_found", "training_file", "'file-none'",
        "POST /v1/files",
    ),
    "a deleted file": (
        with_deleted_file, 400, "not_found", "training_file", "no file", "POST /v1/files",
    ),
    "a file in use": (
        delete_in_use, 409, "file_in_use", None, "is used by job ftjob-", "cancel the job first",
    ),
    "an unknown model": (
        create(model="tiny-lama"), 400, "model_not_found", "model", "'tiny-lama'",
        "did you mean 'tiny-llama'?",
    ),
    "a model outside the allowed directories": (
        create(model="/etc"), 400, "model_not_found", "model", "'/etc'", "TUNESMITH_MODEL_DIRS",
    ),
    "an unknown recipe field": (
        recipe(learing_rate=1e-4), 400, "unknown_field", "recipe.learing_rate",
        "unknown field 'learing_rate'", "did you mean 'learning_rate'?",
    ),
    "another program's word": (
        recipe(lora={"rank": 8}), 400, "unknown_field", "recipe.lora.rank", "'rank'",
        "did you mean 'r'?",
    ),
    "rank 0": (
        recipe(lora={"r": 0}), 400, "invalid_request", "recipe.lora.r",
        "must be at least 1 (got '0')", "docs/reference/recipe.md",
    ),
    "neither yes, no nor auto": (
        recipe(packing="maybe"), 400, "invalid_request", "recipe.packing",
        "must be true or false, or 'auto' (got 'maybe')", "docs/reference/recipe.md",
    ),
    "two fields of which each is a union": (
        recipe(packing="maybe", max_steps=0), 400, "invalid_request", "recipe.max_steps",
        "'auto' (got '0')", "2 errors",
    ),
    "no target module": (
        recipe(lora={"target_modules": []}), 400, "invalid_request", "recipe.lora",
        "at least one layer", "docs/reference/recipe.md",
    ),
    "recipe against hyperparameters": (
        create(hyperparameters={"n_epochs": 3}, recipe={"num_train_epochs": 2}), 400,
        "invalid_request", None, "n_epochs=3 and recipe.num_train_epochs=2.0 differ", "/docs",
    ),
    "early stopping without a validation file": (
        recipe(early_stopping={"patience": 2}), 400, "invalid_request", "recipe.early_stopping",
        "there is no validation_file", "docs/reference/recipe.md",
    ),
    "the best weights without a validation file": (
        recipe(keep="best"), 400, "invalid_request", "recipe.keep",
        "remove recipe.keep", "docs/reference/recipe.md",
    ),
    "a wrong key": (
        lambda server: Caller(server.client, "ts-wrong").get("/v1/files"), 401,
        "invalid_api_key", None, "key", "key",
    ),
    "a revoked key": (with_revoked_key, 401, "invalid_api_key", None, "has been revoked", "key"),
    "a wrong worker token": (
        lambda server: Caller(server.client, "no").post("/internal/workers/enroll"), 401,
        "invalid_api_key", None, "worker token", "TUNESMITH_WORKER_TOKEN",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_bad_request_is_told_what_is_wrong_and_what_to_do(server: Server, name: str) -> None:
    ask, status, code, param, words, advice = CASES[name]
    reply = ask(server)
    assert reply.status_code == status, reply.text
    error = ErrorEnvelope.model_validate(reply.json()).error
    assert (error.code, error.param, error.retryable) == (code, param, False)
    assert words in error.message
    assert error.hint is not None
    assert advice in error.hint
    jobs = server.user.json("/v1/fine_tuning/jobs")["data"]
    assert len(jobs) == (1 if name == "a file in use" else 0), "no job was created"

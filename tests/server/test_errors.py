"""Every error is OpenAI's envelope with a hint, `retryable` and the request id."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from httpx2 import Response
from sqlalchemy.exc import OperationalError

from tunesmith_schema import ErrorCode, ErrorEnvelope

from .actors import Server

JSON = {"content-type": "application/json"}
FORM = {"content-type": "multipart/form-data"}
SECRET = "the password is swordfish"

REFUSALS: dict[str, tuple[int, ErrorCode, Callable[[Server], Response]]] = {
    "no such route": (404, ErrorCode.NOT_FOUND, lambda s: s.user.get("/v1/nothing")),
    "no such route outside /v1": (404, ErrorCode.NOT_FOUND, lambda s: s.anonymous.get("/nothing")),
    "a slash at the end": (404, ErrorCode.NOT_FOUND, lambda s: s.user.get("/v1/files/")),
    "no such file": (404, ErrorCode.NOT_FOUND, lambda s: s.user.get("/v1/files/file-none")),
    "no such job": (404, ErrorCode.NOT_FOUND, lambda s: s.user.get("/v1/fine_tuning/jobs/x")),
    "no such model": (404, ErrorCode.MODEL_NOT_FOUND, lambda s: s.user.get("/v1/models/a/b")),
    "no such adapter": (404, ErrorCode.NOT_FOUND, lambda s: s.user.get("/v1/adapters/adp-x")),
    "wrong method": (405, ErrorCode.METHOD_NOT_ALLOWED, lambda s: s.user.put("/v1/files")),
    "no key": (401, ErrorCode.INVALID_API_KEY, lambda s: s.anonymous.get("/v1/models")),
    "no worker token": (
        401, ErrorCode.INVALID_API_KEY, lambda s: s.anonymous.post("/internal/jobs/claim"),
    ),
    "too large": (
        413, ErrorCode.REQUEST_TOO_LARGE,
        lambda s: s.user.post("/v1/files", content=b"x" * 500_000),
    ),
    "not JSON": (
        400, ErrorCode.INVALID_REQUEST,
        lambda s: s.user.post("/v1/fine_tuning/jobs", content=b"{", headers=JSON),
    ),
    "no body": (400, ErrorCode.INVALID_REQUEST, lambda s: s.user.post("/v1/fine_tuning/jobs")),
    "a list for an object": (
        400, ErrorCode.INVALID_REQUEST, lambda s: s.user.post("/v1/fine_tuning/jobs", json=[1]),
    ),
    "bad query": (400, ErrorCode.INVALID_REQUEST, lambda s: s.user.get("/v1/files?limit=none")),
    "no form": (400, ErrorCode.INVALID_REQUEST, lambda s: s.user.post("/v1/files")),
    "a form without a boundary": (
        400, ErrorCode.INVALID_REQUEST,
        lambda s: s.user.post("/v1/files", content=b"x", headers=FORM),
    ),
    "bytes that are not there": (
        416, ErrorCode.RANGE_NOT_SATISFIABLE,
        lambda s: s.user.get(
            f"/v1/files/{s.good_file()}/content", headers={"range": "bytes=9999-"}
        ),
    ),
    "not ready": (503, ErrorCode.UNAVAILABLE, lambda s: s.anonymous.get("/readyz")),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_the_envelope(server: Server, name: str) -> None:
    status, code, ask = REFUSALS[name]
    reply = ask(server)
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = ErrorEnvelope.model_validate(reply.json()).error
    assert set(reply.json()["error"]) == {
        "message", "type", "param", "code", "hint", "retryable", "request_id",
    }  # fmt: skip
    assert error.code == code
    assert error.message
    assert error.hint
    assert error.request_id == reply.headers["x-request-id"]
    assert error.retryable == (status >= 500)
    assert ("retry-after" in reply.headers) == error.retryable
    assert reply.headers.get("x-should-retry") == (None if error.retryable else "false")


@pytest.mark.parametrize("path", ["/files", "/fine_tuning/jobs/ftjob-1/events", "/models/a"])
def test_a_base_url_without_v1_gets_a_hint(server: Server, path: str) -> None:
    error = server.user.get(path).json()["error"]
    assert error["hint"] == f"the route is /v1{path}: the base URL must end in /v1"


def test_a_wrong_method_is_told_a_right_one(server: Server) -> None:
    assert server.user.put("/v1/files/file-x").headers["allow"]


def test_a_refused_key_is_asked_for_a_bearer_token(server: Server) -> None:
    assert server.anonymous.get("/v1/files").headers["www-authenticate"] == "Bearer"


@pytest.fixture
def broken(server: Server) -> Server:
    """Server with a route that raises an unhandled error."""

    def fail() -> None:
        raise RuntimeError(SECRET)

    server.app.add_api_route("/v1/broken", fail)
    return server


def test_an_unforeseen_error_is_the_envelope_and_leaks_nothing(
    broken: Server, caplog: pytest.LogCaptureFixture
) -> None:
    reply = broken.user.get("/v1/broken")
    assert reply.status_code == 500
    assert SECRET not in reply.text
    error = ErrorEnvelope.model_validate(reply.json()).error
    assert error.code == ErrorCode.INTERNAL
    assert error.retryable
    assert error.hint
    assert error.request_id == reply.headers["x-request-id"]
    assert SECRET in caplog.text, "the operator needs the traceback"
    assert error.request_id in caplog.text, "and which request it was"


def test_an_outage_of_the_database_is_temporary_and_no_bug(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers repeat an upload after 503 without limit, but after 500 only a few times."""

    def fail() -> None:
        cause = psycopg.OperationalError("the database system is in recovery mode")
        raise OperationalError("SELECT 1", {}, cause)

    server.app.add_api_route("/v1/down", fail)
    reply = server.user.get("/v1/down")
    error = ErrorEnvelope.model_validate(reply.json()).error
    assert (reply.status_code, error.code, error.retryable) == (503, ErrorCode.UNAVAILABLE, True)
    assert reply.headers["retry-after"]
    assert "in recovery mode" in caplog.text
    assert "Traceback" not in caplog.text


def test_every_answer_carries_a_request_id(server: Server) -> None:
    for path in ("/healthz", "/v1/files", "/v1/nothing", "/openapi.json"):
        assert server.user.get(path).headers.get_list("x-request-id"), path


@pytest.mark.parametrize(
    ("given", "kept"),
    [("trace-1.a_B", True), ("x" * 64, True), ("x" * 65, False), ("a b", False), ("", False)],
)
def test_a_plain_request_id_of_the_caller_is_kept(server: Server, given: str, kept: bool) -> None:
    reply = server.user.get("/v1/nothing", headers={"x-request-id": given})
    assert (reply.headers["x-request-id"] == given) == kept
    assert len(reply.headers.get_list("x-request-id")) == 1


HOSTILE: list[Any] = [
    {"model": "\ud800", "training_file": "f"},
    {"model": "m", "training_file": "\ud800"},
    {"model": "m", "training_file": "f", "metadata": {"a": "\ud800"}},
    {"model": "m", "training_file": "f", "\ud800": 1},
    {"model": "m\x00", "training_file": "f\x00"},
    {"model": "/m\x00", "training_file": "f"},
    {"model": "m", "training_file": "f", "recipe": {"max_grad_norm": float("inf")}},
    {"model": "m", "training_file": "f", "recipe": {"learning_rate": float("nan")}},
    {"model": "m", "training_file": "f", "seed": 10**400},
    {"model": "m", "training_file": "f", "integrations": [[[[[[[[[[[[[[]]]]]]]]]]]]]]},
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_body_is_the_callers_error(server: Server, body: Any) -> None:
    file_id = server.good_file()
    usable = {"m": "tiny-llama", "f": file_id}
    body = {
        key: usable.get(value, value) if isinstance(value, str) else value
        for key, value in body.items()
    }
    reply = server.create_reply(file_id, **body)
    assert reply.status_code == 400, reply.text
    ErrorEnvelope.model_validate(reply.json())


def test_json_that_nests_too_deep_is_the_callers_error(server: Server) -> None:
    body = b'{"integrations": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    reply = server.user.post("/v1/fine_tuning/jobs", content=body, headers=JSON)
    assert reply.status_code == 400
    ErrorEnvelope.model_validate(reply.json())

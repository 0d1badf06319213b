"""HTTP responses as exceptions, and their texts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import tunesmith
from tunesmith import (
    APIResponseError,
    APIStatusError,
    BadRequestError,
    Client,
    InvalidArgumentError,
)

from .fakes import Script, client_of, refusal


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (403, "PermissionDeniedError"),
        (404, "NotFoundError"),
        (409, "ConflictError"),
        (418, "APIStatusError"),
        (422, "UnprocessableEntityError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (503, "InternalServerError"),
    ],
)
def test_each_status_has_its_class(status: int, name: str) -> None:
    with pytest.raises(APIStatusError) as caught:
        client_of(Script(refusal(status)), max_retries=0).models.list()
    assert type(caught.value) is getattr(tunesmith, name)
    assert caught.value.status_code == status


def test_an_error_has_all_fields_of_the_answer() -> None:
    answer = refusal(
        400,
        message="r: must be 1-512, got 0",
        param="recipe.lora.r",
        code="invalid_request",
        hint="leave it out",
        headers={"x-request-id": "req-9"},
    )
    with pytest.raises(BadRequestError) as caught:
        client_of(Script(answer)).models.list()
    error = caught.value
    assert (error.param, error.code, error.type) == (
        "recipe.lora.r",
        "invalid_request",
        "invalid_request_error",
    )
    assert error.retryable is False
    assert str(error) == "r: must be 1-512, got 0\nhint: leave it out\nrequest id: req-9"


def test_an_error_page_of_another_program_is_named() -> None:
    answer = httpx.Response(404, text="<html>nginx</html>")
    with pytest.raises(
        tunesmith.NotFoundError, match="404, but the answer is not from a Tunesmith server"
    ) as caught:
        client_of(Script(answer)).models.list()
    assert caught.value.body == "<html>nginx</html>"


def test_a_success_with_a_wrong_body_is_an_error() -> None:
    with pytest.raises(APIResponseError, match="did not answer with a File"):
        client_of(Script(httpx.Response(200, text="<html>hello</html>"))).files.retrieve("file-1")


def test_unknown_keys_of_a_newer_server_do_no_harm() -> None:
    body = {"id": "m", "created": 1, "owned_by": "base", "novelty": 3}
    assert client_of(Script(httpx.Response(200, json=body))).models.retrieve("m").id == "m"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"recipe": {"lora": {"r": 0}}}, r"recipe\.lora\.r \(got 0\)"),
        ({"recipe": {"lerning_rate": 1}}, "did you mean 'learning_rate'"),
        ({"recipe": {"learning_rate": 5}}, "must be at most 1, or 'auto'"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"training_file": "missing.jsonl"}, "neither a file id .* nor a local file"),
    ],
)
def test_a_bad_value_fails_before_the_network(arguments: dict[str, Any], said: str) -> None:
    script = Script(httpx.ConnectError("must not be asked"))
    with pytest.raises(InvalidArgumentError, match=said):
        client_of(script).fine_tuning.jobs.create(
            **{"model": "tiny", "training_file": "file-1", **arguments}
        )
    assert script.requests == []


def test_without_a_key_there_is_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUNESMITH_API_KEY", raising=False)
    with pytest.raises(InvalidArgumentError, match="TUNESMITH_API_KEY"):
        Client()


def test_a_mangled_key_is_refused_without_being_shown() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Client(api_key="sk-sec\nret")
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize("url", ["server:8000/v1", "ftp://server", "http://"])
def test_an_invalid_base_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidArgumentError, match="base_url"):
        Client(base_url=url, api_key="sk")


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNESMITH_BASE_URL", "http://elsewhere.test/v1/")
    monkeypatch.setenv("TUNESMITH_API_KEY", "sk-env\n")
    script = Script(httpx.Response(200, json={"data": []}))
    with Client(transport=httpx.MockTransport(script)) as client:
        client.models.list()
    request = script.requests[0]
    assert str(request.url) == "http://elsewhere.test/v1/models"
    assert request.headers["authorization"] == "Bearer sk-env"
    assert request.headers["user-agent"] == f"tunesmith-python/{tunesmith.__version__}"

"""Retries: which requests, after how long, with which content."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from tunesmith import (
    APIConnectionError,
    APITimeoutError,
    ConflictError,
    InternalServerError,
    RateLimitError,
)

from .fakes import Clock, Script, client_of, job, refusal


def ok() -> httpx.Response:
    return httpx.Response(200, json=job())


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_a_temporary_error_is_retried(status: int) -> None:
    script = Script(refusal(status), ok())
    assert client_of(script).fine_tuning.jobs.retrieve("ftjob-1").id == "ftjob-1"
    assert len(script.requests) == 2


def test_a_refused_connection_is_retried_and_then_raised() -> None:
    script = Script(httpx.ConnectError("[Errno 111] Connection refused"))
    with pytest.raises(APIConnectionError, match=r"to http://server\.test/v1/models: Conn"):
        client_of(script).models.list()
    assert len(script.requests) == 3


def test_no_answer_is_a_timeout_error_and_a_connection_error() -> None:
    client = client_of(Script(httpx.ReadTimeout("slow")), max_retries=0)
    with pytest.raises(APITimeoutError) as caught:
        client.models.list()
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, ConnectionError)


def test_the_wait_doubles_with_full_jitter_up_to_eight_seconds() -> None:
    clock = Clock()
    with pytest.raises(InternalServerError):
        client_of(Script(refusal(500)), clock, max_retries=7).models.list()
    bounds = [0.5, 1, 2, 4, 8, 8, 8]
    assert len(clock.naps) == len(bounds)
    assert all(0 <= nap <= bound for nap, bound in zip(clock.naps, bounds, strict=True))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "120"}, 120.0),
    ],
)
def test_the_server_says_how_long_to_wait(headers: dict[str, str], seconds: float) -> None:
    clock = Clock()
    client_of(Script(refusal(429, headers=headers), ok()), clock).fine_tuning.jobs.retrieve("x")
    assert clock.naps == [seconds]


def test_the_server_may_name_a_date() -> None:
    clock = Clock()
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    client_of(
        Script(refusal(503, headers={"retry-after": date}), ok()), clock
    ).fine_tuning.jobs.retrieve("x")
    assert 50 < clock.naps[0] <= 60


def test_a_wait_of_more_than_two_minutes_is_an_error() -> None:
    script = Script(refusal(429, headers={"retry-after": "121"}))
    with pytest.raises(RateLimitError):
        client_of(script).models.list()
    assert len(script.requests) == 1


def test_a_permanent_conflict_is_not_retried() -> None:
    script = Script(refusal(409, headers={"x-should-retry": "false"}))
    with pytest.raises(ConflictError):
        client_of(script).files.delete("file-1")
    assert len(script.requests) == 1


def test_the_server_can_ask_for_a_retry_of_anything() -> None:
    script = Script(refusal(400, headers={"x-should-retry": "true"}), ok())
    client_of(script).fine_tuning.jobs.retrieve("ftjob-1")
    assert len(script.requests) == 2


def test_all_tries_of_a_create_carry_one_idempotency_key() -> None:
    script = Script(httpx.ReadError("reset"), refusal(503), ok(), ok())
    jobs = client_of(script).fine_tuning.jobs
    jobs.create(model="tiny", training_file="file-1")
    jobs.create(model="tiny", training_file="file-1")
    keys = [request.headers["idempotency-key"] for request in script.requests]
    assert keys[0] == keys[1] == keys[2]
    assert keys[3] != keys[0]
    assert len(set(script.bodies)) == 1


def test_the_callers_idempotency_key_is_sent() -> None:
    script = Script(ok())
    client_of(script).fine_tuning.jobs.create(
        model="tiny", training_file="file-1", idempotency_key="mine"
    )
    assert script.requests[0].headers["idempotency-key"] == "mine"

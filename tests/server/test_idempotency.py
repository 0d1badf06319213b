"""A repeated create request makes one job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from tunesmith_server.models import IdempotencyRow

from .actors import Server

KEY = {"idempotency-key": "k-1"}
RETRY = {"x-stainless-retry-count": "1"}


def _jobs(server: Server) -> int:
    return len(server.user.json("/v1/fine_tuning/jobs")["data"])


@pytest.fixture
def file_id(server: Server) -> str:
    return server.good_file()


def test_the_same_key_gives_the_same_job(server: Server, file_id: str) -> None:
    first = server.create_reply(file_id, headers=KEY)
    again = server.create_reply(file_id, headers=KEY)
    assert first.json()["id"] == again.json()["id"]
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert _jobs(server) == 1


def test_a_replay_shows_the_job_as_it_is_now(server: Server, file_id: str) -> None:
    job_id = server.create_reply(file_id, headers=KEY).json()["id"]
    server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    assert server.create_reply(file_id, headers=KEY).json()["status"] == "cancelled"


def test_the_same_key_for_another_request_is_refused(server: Server, file_id: str) -> None:
    server.create_job(file_id, headers=KEY)
    reply = server.create_reply(file_id, suffix="other", headers=KEY)
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert reply.headers["x-should-retry"] == "false"
    assert _jobs(server) == 1


def test_a_field_that_says_the_default_is_the_same_request(server: Server, file_id: str) -> None:
    first = server.create_job(file_id, headers=KEY)
    assert server.create_job(file_id, recipe={"tuning": "lora"}, headers=KEY) == first


def test_another_callers_key_is_another_key(server: Server, file_id: str) -> None:
    first = server.create_job(file_id, headers=KEY)
    body = {"model": "tiny-llama", "training_file": file_id}
    other = server.new_user("bob").post("/v1/fine_tuning/jobs", json=body, headers=KEY)
    assert other.status_code == 200
    assert other.json()["id"] != first


def test_without_a_key_each_request_makes_a_job(server: Server, file_id: str) -> None:
    assert server.create_job(file_id) != server.create_job(file_id)


def test_a_retry_without_a_key_is_a_new_request(server: Server, file_id: str) -> None:
    """Two runs with the same body may be meant: only a key tells a repetition."""
    first = server.create_job(file_id)
    assert server.create_job(file_id, headers=RETRY) != first
    assert _jobs(server) == 2


def test_a_refused_request_does_not_use_up_its_key(server: Server, file_id: str) -> None:
    assert server.create_reply("file-none", headers=KEY).status_code == 400
    assert server.create_reply(file_id, headers=KEY).status_code == 200


def test_keys_are_forgotten_after_a_day(server: Server, file_id: str) -> None:
    first = server.create_job(file_id, headers=KEY)
    with server.database.write.begin() as session:
        session.execute(update(IdempotencyRow).values(created_at=1.0))
    server.janitor().round()
    assert server.create_job(file_id, headers=KEY) != first


def test_ten_at_once_make_one_job(server: Server, file_id: str) -> None:
    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(lambda _: server.create_reply(file_id, headers=KEY), range(10)))
    assert {reply.status_code for reply in replies} <= {200, 503}, "503: ask again"
    made = {reply.json()["id"] for reply in replies if reply.status_code == 200}
    assert made == {server.create_job(file_id, headers=KEY)}
    assert _jobs(server) == 1

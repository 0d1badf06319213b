"""`validate_only=true`: all problems of a create request at once, and nothing is created."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import func, select

from tunesmith_server.models import JobRow, ProjectRow
from tunesmith_server.models.audit import AuditRow

from .actors import Server
from .teams import caller

JOBS = "/v1/fine_tuning/jobs"


def validated(server: Server, body: Any, **options: Any) -> Any:
    reply = server.user.post(f"{JOBS}?validate_only=true", json=body, **options)
    assert reply.status_code == 200, reply.text
    return reply.json()


def rows(server: Server) -> tuple[int | None, ...]:
    with server.database.read() as session:
        counts = [session.scalar(select(func.count()).select_from(t)) for t in (JobRow, AuditRow)]
    return tuple(counts)


def test_a_valid_request_creates_nothing(server: Server) -> None:
    body = {"model": "tiny-llama", "training_file": server.good_file()}
    assert server.worker.hello().status_code == 200
    before, sent = rows(server), len(server.wake_ups.sent)
    headers = {"idempotency-key": "k"}
    assert validated(server, body, headers=headers) == {
        "object": "fine_tuning.job.validation", "valid": True, "problems": [], "warnings": [],
    }  # fmt: skip
    assert (rows(server), len(server.wake_ups.sent)) == (before, sent)
    created = server.user.post(JOBS, json=body, headers=headers)
    assert created.status_code == 200
    assert "idempotent-replayed" not in created.headers


def test_all_problems_come_at_once(server: Server) -> None:
    body = {
        "model": "tiny-lama",
        "training_file": server.bad_file(),
        "validation_file": "file-0",
        "seed": -1,
        "sufix": "x",
        "recipe": {"lora": {"r": 0, "rank": 3}, "learning_rat": 1, "weight_decay": 7},
        "scheduling": {"priority": 5},
    }
    result = validated(server, body)
    assert result["valid"] is False
    problems = {problem["param"]: problem["code"] for problem in result["problems"]}
    assert problems == {
        "sufix": "unknown_field",
        "recipe.learning_rat": "unknown_field",
        "recipe.lora.rank": "unknown_field",
        "recipe.lora.r": "invalid_request",
        "recipe.weight_decay": "invalid_request",
        "seed": "invalid_request",
        "model": "model_not_found",
        "training_file": "invalid_training_file",
        "validation_file": "not_found",
        None: "permission_denied",
    }
    assert all(problem["message"] for problem in result["problems"])


@pytest.mark.parametrize(
    "change",
    [
        {"model": 5, "unknown": 1}, {"training_file": None}, {"method": {"type": "other"}},
        {"method": {"type": "reinforcement"}}, {"recipe": {"keep": "best"}}, {"recipe": []},
        {"hyperparameters": {"n_epochs": 2}, "recipe": {"num_train_epochs": 3}},
        {"scheduling": {"priority": "9"}}, {"model": "a" * 600}, {"training_file": "\x00"},
    ],
)  # fmt: skip
def test_what_create_refuses_is_a_problem(server: Server, change: dict[str, Any]) -> None:
    body = {"model": "tiny-llama", "training_file": server.good_file(), **change}
    refused = server.user.post(JOBS, json=body)
    assert refused.status_code in (400, 403), refused.text
    first, problems = refused.json()["error"], validated(server, body)["problems"]
    assert (first["param"], first["message"]) in [(p["param"], p["message"]) for p in problems]


def test_limits_are_problems_and_other_bodies_are_refused(server: Server) -> None:
    body = {"model": "tiny-llama", "training_file": server.good_file()}
    viewer = caller(server, "viewer")
    assert viewer.post(f"{JOBS}?validate_only=true", json=body).status_code == 403
    for query, content in (("true", b"{"), ("true", b"[]"), ("maybe", b"{}")):
        reply = server.user.post(
            f"{JOBS}?validate_only={query}", content=content,
            headers={"content-type": "application/json"},
        )  # fmt: skip
        assert reply.status_code == 400, (query, content)
    with server.database.write.begin() as session:
        session.scalars(select(ProjectRow)).one().max_queued_jobs = 0
    (problem,) = validated(server, body)["problems"]
    assert (problem["param"], problem["code"]) == (None, "quota_exceeded")

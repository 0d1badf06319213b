"""Forks: new jobs from a job's resume point, with a changed recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tunesmith_schema import JobState

from .actors import Server
from .callers import event

JobIn = Callable[[JobState], str]


def fork_reply(
    server: Server, job_id: str, headers: dict[str, str] | None = None, **body: Any
) -> Any:
    path = f"/v1/fine_tuning/jobs/{job_id}/fork"
    return server.user.post(path, json=body, headers=headers)


def refusal(server: Server, job_id: str, **body: Any) -> Any:  # Any: JSON
    reply = fork_reply(server, job_id, **body)
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


@pytest.fixture
def parent(server: Server) -> str:
    """A paused job with three resume points."""
    recipe = {"lora": {"r": 4, "lora_alpha": 8}, "learning_rate": 1e-3, "max_steps": 500}
    job_id = server.create_job(
        server.good_file(), recipe=recipe, suffix="first", seed=7, metadata={"team": "x"}
    )
    server.ask(job_id, "pause")
    server.add_resume_points(job_id, 100, 200, 300)
    return job_id


def test_a_fork_is_the_job_with_what_was_changed(server: Server, parent: str) -> None:
    changes = {"learning_rate": 1e-5, "max_steps": 900, "lora": {"lora_dropout": 0.1}}
    made = server.ask(parent, "fork", step=200, recipe=changes, suffix="slower")
    old = server.job(parent)
    assert (made["forked_from"], made["forked_step"], made["retry_of"]) == (parent, 200, None)
    assert made["recipe"]["lora"] == old["recipe"]["lora"] | {"lora_dropout": 0.1}
    assert made["recipe"] == old["recipe"] | changes | {"lora": made["recipe"]["lora"]}
    assert (made["suffix"], made["seed"], made["metadata"]) == ("slower", 7, {"team": "x"})
    assert made["state"] == "queued"
    assert server.messages(made["id"])[0].endswith(f"forked from {parent} at step 200")
    assert old["state"] == "paused", "it is left as it is"
    assert server.worker.claim()["job_id"] == made["id"]


def test_a_fork_starts_at_or_before_the_step_asked_for(server: Server, parent: str) -> None:
    for asked, step in ({}, 300), ({"step": 300}, 300), ({"step": 299}, 200), ({"step": 100}, 100):
        made = server.ask(parent, "fork", **asked)
        assert made["forked_step"] == step
        warned = [m for m in server.messages(made["id"]) if "has no resume point" in m]
        assert len(warned) == (asked == {"step": 299})


def test_a_step_that_cannot_be_reached_is_refused_with_those_that_can(
    server: Server, parent: str
) -> None:
    for step in (99, 301):
        error = refusal(server, parent, step=step)
        assert (error["code"], error["param"]) == ("not_forkable", "step")
        assert error["hint"] == "its resume points: 100, 200, 300"


def test_a_fork_from_a_checkpoint_starts_at_its_step(server: Server, parent: str) -> None:
    server.ask(parent, "resume")
    claim = server.worker.claim()
    stored = server.worker.store(claim, {"adapter_model.safetensors": b"x"})
    saved = event(1, kind="checkpoint", data={"step": 200, "metrics": {}}, files=stored)
    server.worker.report(claim, events=[saved])
    [checkpoint] = server.user.json(f"/v1/fine_tuning/jobs/{parent}/checkpoints")["data"]
    assert server.ask(parent, "fork", checkpoint=checkpoint["id"])["forked_step"] == 200
    other = server.create_job(server.good_file())
    assert refusal(server, other, checkpoint=checkpoint["id"])["param"] == "checkpoint"
    both = refusal(server, parent, checkpoint=checkpoint["id"], step=200)
    assert "set only one" in both["message"]


REFUSED: dict[str, dict[str, Any]] = {
    "tuning": {"tuning": "full", "lora": None},
    "lora.r": {"lora": {"r": 8}},
    "lora.target_modules": {"lora": {"target_modules": ["q_proj"]}},
    "quantization": {"quantization": "nf4"},
    "precision": {"precision": "fp32"},
    "add_tokens": {"add_tokens": ["<x>"]},
    "max_steps": {"max_steps": 300},
    "learning_rate": {"learning_rate": 7},
    "lerning_rate": {"lerning_rate": 1e-4},
}


def test_what_a_fork_cannot_go_on_with_is_refused_by_name(server: Server, parent: str) -> None:
    for param, change in REFUSED.items():
        error = refusal(server, parent, recipe=change)
        assert error["param"] == f"recipe.{param}"
        assert error["hint"]
    assert [job["id"] for job in server.user.json("/v1/fine_tuning/jobs")["data"]] == [parent]


def test_hyperparameters_change_one_by_one(server: Server) -> None:
    method = {
        "type": "supervised",
        "supervised": {"hyperparameters": {"batch_size": 4, "n_epochs": 2}},
    }
    parent = server.create_job(server.good_file(), method=method)
    server.add_resume_points(parent, 10)
    made = server.ask(parent, "fork", hyperparameters={"n_epochs": 5})
    assert (made["hyperparameters"]["n_epochs"], made["hyperparameters"]["batch_size"]) == (5, 4)
    error = refusal(server, parent, recipe={"max_steps": 50})
    assert "both set the length" in error["message"]


def test_a_job_in_any_state_can_be_forked_if_it_has_a_resume_point(
    server: Server, job_in: JobIn
) -> None:
    for state in JobState:
        job_id = job_in(state)
        assert refusal(server, job_id)["code"] == "not_forkable"
        if state is not JobState.VALIDATING_FILES:  # no fork has trained on these yet
            server.add_resume_points(job_id, 5)
            made = server.ask(job_id, "fork")  # the body is optional
            assert made["forked_step"] == 5
            server.ask(made["id"], "cancel")
        assert server.job(job_id)["state"] == state
        server.change_job(job_id, state=JobState.CANCELLED)  # the next job must be the only one


def test_the_same_key_gives_the_same_fork(server: Server, parent: str) -> None:
    key = {"idempotency-key": "k"}
    first = fork_reply(server, parent, key, step=100)
    again = fork_reply(server, parent, key, step=100)
    assert first.json()["id"] == again.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert fork_reply(server, parent, key, step=200).status_code == 409
    assert fork_reply(server, parent, step=100).json()["id"] != first.json()["id"]

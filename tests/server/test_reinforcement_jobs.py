"""Reinforcement jobs, from the create body to the worker's claim."""

from __future__ import annotations

from typing import Any

import pytest

from .actors import Server

GRADER = {"type": "math_answer", "reference": "{{item.answer}}"}
NO_ANSWERS = {
    "usable_for": ["reinforcement"],
    "refused": {
        "supervised": {"problems": [{"row": 2, "message": "answer is empty"}], "num_problems": 3}
    },
}
NO_PROMPTS = {
    "usable_for": ["supervised"],
    "refused": {
        "reinforcement": {"problems": [{"row": 1, "message": "no prompt"}], "num_problems": 1}
    },
}


def method(**hyperparameters: Any) -> dict[str, Any]:
    member = {"grader": GRADER, **({"hyperparameters": hyperparameters} if hyperparameters else {})}
    return {"type": "reinforcement", "reinforcement": member}


def prompts(server: Server, **found: Any) -> str:
    file_id = server.upload()
    server.validate(file_id, **{"usable_for": ["supervised", "reinforcement"], **found})
    return file_id


def test_the_method_goes_to_the_caller_and_to_the_worker(server: Server) -> None:
    job_id = server.create_job(prompts(server), method=method(batch_size=4, eval_samples=2))
    job = server.job(job_id)
    knobs = {"n_epochs": "auto", "batch_size": 4, "learning_rate_multiplier": "auto"}
    assert job["hyperparameters"] == knobs
    assert job["method"]["type"] == "reinforcement"
    shown = job["method"]["reinforcement"]
    assert shown["grader"].items() >= GRADER.items()
    assert shown["hyperparameters"].items() >= {**knobs, "eval_samples": 2}.items()
    assert "queued: 1 prompts" in server.messages(job_id)[-1]
    claim = server.worker.claim()
    assert claim["method"] == "reinforcement"
    assert claim["grader"] == shown["grader"]
    assert claim["hyperparameters"] == shown["hyperparameters"]


def test_the_older_form_of_the_hyperparameters_does_as_well(server: Server) -> None:
    job_id = server.create_job(prompts(server), method=method(), hyperparameters={"batch_size": 4})
    assert server.job(job_id)["method"]["reinforcement"]["hyperparameters"]["batch_size"] == 4
    assert server.worker.claim()["hyperparameters"]["batch_size"] == 4


def test_a_supervised_job_is_claimed_as_one(server: Server) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    assert (claim["method"], claim["grader"]) == ("supervised", None)
    assert set(claim["hyperparameters"]) == {"n_epochs", "batch_size", "learning_rate_multiplier"}


@pytest.mark.parametrize(
    ("found", "kind", "said"),
    [
        (NO_ANSWERS, "supervised", "cannot be trained on: row 2: answer is empty (and 2 more)"),
        (NO_PROMPTS, "reinforcement", "cannot be used for reinforcement: row 1: no prompt"),
    ],
)
def test_a_file_is_refused_for_the_method_that_cannot_use_it(
    server: Server, found: dict[str, Any], kind: str, said: str
) -> None:
    body = {"method": method()} if kind == "reinforcement" else {}
    waiting = server.upload()
    early = server.create_job(waiting, **body)
    server.validate(waiting, **found)
    job = server.job(early)
    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_training_file")
    assert said in job["error"]["message"]

    known = prompts(server, **found)
    assert server.user.json(f"/v1/files/{known}")["status"] == "processed"
    reply = server.create_reply(known, **body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_training_file", "training_file")
    assert said in error["message"]
    assert f"validation.refused.{kind}.problems" in error["hint"]

    other = {} if kind == "reinforcement" else {"method": method()}
    assert server.create_reply(known, **other).status_code == 200


def test_a_file_read_before_there_was_reinforcement_is_sent_again(server: Server) -> None:
    error = server.create_reply(server.good_file(), method=method()).json()["error"]
    assert "upload the file again" in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"recipe": {"grpo": {}}}, "recipe.grpo"),
        ({"method": {"type": "supervised"}, "recipe": {"rollout": {}}}, "recipe.rollout"),
        ({"method": method(), "recipe": {"packing": True}}, "recipe.packing"),
        ({"method": method(), "recipe": {"keep": "best"}}, "recipe.keep"),
        ({"method": {"type": "reinforcement"}}, "method"),
        ({"method": method(batch_size=0)}, "method.reinforcement.hyperparameters.batch_size"),
    ],
)
def test_what_does_not_fit_the_method_is_refused_by_name(
    server: Server, body: dict[str, Any], param: str
) -> None:
    reply = server.create_reply(prompts(server), **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_a_fork_keeps_the_method_and_may_change_the_grader(server: Server) -> None:
    parent = server.create_job(prompts(server), method=method(batch_size=4, eval_samples=2))
    server.ask(parent, "pause")
    server.add_resume_points(parent, 10, 20)
    old = server.job(parent)["method"]["reinforcement"]

    same = server.ask(parent, "fork", recipe={"learning_rate": 1e-6})
    assert same["method"]["reinforcement"] == old
    knobs = {"learning_rate_multiplier": 0.5, "eval_samples": 3}
    other = server.ask(parent, "fork", hyperparameters=knobs)
    assert other["method"]["reinforcement"] == {
        "grader": old["grader"],
        "hyperparameters": old["hyperparameters"] | knobs,
    }
    claims: dict[str, Any] = {}
    grader = {"type": "regex", "pattern": "yes"}
    changed = server.ask(parent, "fork", grader=grader)
    assert changed["method"]["reinforcement"]["grader"].items() >= grader.items()
    for _ in range(3):
        claim = server.worker.claim(f"worker-{len(claims)}")
        claims[claim["job_id"]] = claim
    assert claims[changed["id"]]["forked"], "a resume point for another grader"
    assert claims[changed["id"]]["grader"]["type"] == "regex"


def test_a_retry_keeps_the_method(server: Server) -> None:
    job_id = server.create_job(prompts(server), method=method(eval_samples=2))
    server.ask(job_id, "cancel")
    again = server.ask(job_id, "retry")
    assert again["method"] == server.job(job_id)["method"]
    claim = server.worker.claim()
    assert (claim["job_id"], claim["forked"]) == (again["id"], False)
    assert claim["hyperparameters"]["eval_samples"] == 2


def test_a_supervised_job_is_not_forked_into_another_method(server: Server) -> None:
    parent = server.create_job(server.good_file())
    server.ask(parent, "pause")
    server.add_resume_points(parent, 10)
    reply = server.user.post(f"/v1/fine_tuning/jobs/{parent}/fork", json={"grader": GRADER})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "grader"

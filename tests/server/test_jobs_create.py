"""Creation of jobs: valid requests, and the way into the queue."""

from __future__ import annotations

from typing import Any

import pytest

from tunesmith_schema.queue import TRAIN_TASK

from .actors import Server


def test_a_job_waits_until_its_file_is_read(server: Server) -> None:
    file_id = server.upload()
    job_id = server.create_job(file_id)
    assert server.job(job_id)["status"] == "validating_files"
    assert server.worker.claim_reply().status_code == 204
    server.validate(file_id, rows=12)
    assert server.job(job_id)["status"] == "queued"
    assert (TRAIN_TASK, job_id) in server.wake_ups.sent
    assert server.messages(job_id)[-1] == "queued: 12 training rows"


def test_a_job_on_a_file_already_read_is_queued_at_once(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    assert server.job(job_id)["status"] == "queued"
    assert (TRAIN_TASK, job_id) in server.wake_ups.sent


def test_a_job_with_two_files_waits_for_both(server: Server) -> None:
    training, validation = server.upload(), server.upload()
    job_id = server.create_job(training, validation_file=validation)
    server.validate(validation)
    assert server.job(job_id)["status"] == "validating_files"
    server.validate(training)
    assert server.job(job_id)["status"] == "queued"


@pytest.mark.parametrize("bad", ["training_file", "validation_file"])
def test_a_file_that_turns_out_bad_fails_the_job(server: Server, bad: str) -> None:
    files = {"training_file": server.upload(), "validation_file": server.upload()}
    job_id = server.create_job(files["training_file"], validation_file=files["validation_file"])
    problems = [{"row": 3, "message": "no assistant turn"}]
    server.validate(files[bad], ok=False, problems=problems, num_problems=9)
    job = server.job(job_id)
    assert job["status"] == "failed"
    assert job["error"]["param"] == bad
    assert job["error"]["code"] == f"invalid_{bad}"
    assert job["error"]["category"] == "data"
    assert "row 3: no assistant turn (and 8 more)" in job["error"]["message"]
    assert job["error"]["hint"]
    assert job["finished_at"]
    assert server.worker.claim_reply().status_code == 204


def test_a_file_known_to_be_bad_makes_no_job(server: Server) -> None:
    good, bad = server.good_file(), server.bad_file()
    error = server.create_reply(bad).json()["error"]
    assert (error["param"], error["code"]) == ("training_file", "invalid_training_file")
    assert "row 1: not JSON" in error["message"]
    error = server.create_reply(good, validation_file=bad).json()["error"]
    assert (error["param"], error["code"]) == ("validation_file", "invalid_validation_file")
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []


def test_one_file_may_serve_many_jobs(server: Server) -> None:
    file_id = server.upload()
    jobs = [server.create_job(file_id) for _ in range(3)]
    server.validate(file_id)
    assert {server.job(job_id)["status"] for job_id in jobs} == {"queued"}


def test_a_second_validation_does_not_queue_a_job_twice(server: Server) -> None:
    file_id = server.upload()
    job_id = server.create_job(file_id)
    lease = server.worker.claim_reading(file_id)
    result = {"ok": True, "format": "messages", "rows": 1}
    assert server.worker.read("result", file_id, lease, result=result).status_code == 200
    server.worker.claim()
    assert server.worker.read("result", file_id, lease, result=result).status_code == 200
    assert server.job(job_id)["status"] == "running"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"training_file": "file-none"}, "training_file"),
        ({"validation_file": "file-none"}, "validation_file"),
        ({"model": "tiny-lama"}, "model"),
        ({"recipe": {"lora": {"r": 0}}}, "recipe.lora.r"),
        ({"recipe": {"lora": {"rank": 8}}}, "recipe.lora.rank"),
        ({"recpie": {}}, "recpie"),
        ({"method": {"type": "dpo"}}, "method.type"),
        ({"method": {"type": "supervised", "dpo": {}}}, "method.dpo"),
        ({"suffix": "x" * 65}, "suffix"),
        ({"seed": -1}, "seed"),
        ({"metadata": {"team": 5}}, "metadata.team"),
    ],
)
def test_a_refusal_names_the_field(server: Server, body: dict[str, Any], param: str) -> None:
    reply = server.create_reply(server.good_file(), **body)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param
    assert server.user.json("/v1/fine_tuning/jobs")["data"] == []


def test_a_mistyped_field_gets_the_right_one_offered(server: Server) -> None:
    file_id = server.good_file()
    error = server.create_reply(file_id, recipe={"learing_rate": 1e-4}).json()["error"]
    assert "did you mean 'learning_rate'?" in error["message"]
    assert error["code"] == "unknown_field"


def test_recipe_and_hyperparameters_must_agree(server: Server) -> None:
    reply = server.create_reply(
        server.good_file(), hyperparameters={"n_epochs": 3}, recipe={"num_train_epochs": 2}
    )
    assert reply.status_code == 400
    assert "n_epochs=3" in reply.json()["error"]["message"]


def test_a_file_for_another_purpose_cannot_be_trained_on(server: Server) -> None:
    file_id = server.upload(purpose="assistants")
    error = server.create_reply(file_id).json()["error"]
    assert error["param"] == "training_file"
    assert "fine-tune" in error["hint"]


def test_a_new_job_shows_all_that_openai_requires(server: Server) -> None:
    file_id = server.good_file()
    job = server.job(server.create_job(file_id, suffix="mine", metadata={"team": "x"}, seed=7))
    assert job["object"] == "fine_tuning.job"
    assert (job["model"], job["training_file"], job["seed"]) == ("tiny-llama", file_id, 7)
    assert (job["suffix"], job["metadata"]) == ("mine", {"team": "x"})
    assert job["hyperparameters"] == dict.fromkeys(
        ("n_epochs", "batch_size", "learning_rate_multiplier"), "auto"
    )
    assert job["method"]["type"] == "supervised"
    assert (job["result_files"], job["organization_id"]) == ([], "tunesmith")
    for empty in ("error", "fine_tuned_model", "finished_at", "trained_tokens"):
        assert job[empty] is None
    assert job["recipe"]["tuning"] == "lora"


def test_a_seed_is_drawn_and_shown(server: Server) -> None:
    file_id = server.good_file()
    seeds = {server.job(server.create_job(file_id))["seed"] for _ in range(4)}
    assert len(seeds) > 1


def test_hyperparameters_of_the_method_reach_the_worker(server: Server) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 4}}}
    server.create_job(server.good_file(), method=method, recipe={"lora": {"r": 8}})
    claim = server.worker.claim()
    assert claim["hyperparameters"]["n_epochs"] == 4
    assert claim["recipe"]["lora"]["r"] == 8


def test_json_without_its_content_type_is_explained(server: Server) -> None:
    reply = server.user.post("/v1/fine_tuning/jobs", content=b"{}")
    assert "Content-Type: application/json" in reply.json()["error"]["message"]

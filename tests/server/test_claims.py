"""Claims: a job goes to exactly one worker, oldest first; a claim fences off the last one."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from .actors import Server


def test_there_may_be_nothing_to_do(server: Server) -> None:
    reply = server.worker.claim_reply()
    assert (reply.status_code, reply.content) == (204, b"")


def test_a_claim_tells_all_that_a_run_needs(server: Server) -> None:
    training, validation = server.good_file(), server.good_file(b"other\n")
    job_id = server.create_job(training, validation_file=validation, seed=5)
    claim = server.worker.claim()
    assert (claim["job_id"], claim["attempt"], claim["fence"]) == (job_id, 1, 1)
    assert (claim["model"], claim["seed"], claim["base_files"]) == ("tiny-llama", 5, None)
    assert claim["lease_seconds"] == server.settings.lease_seconds
    assert 0 <= claim["queued_seconds"] < 60
    assert claim["training_file"]["file_id"] == training
    assert claim["training_file"]["sha256"] != claim["validation_file"]["sha256"]
    job = server.job(job_id)
    assert (job["status"], job["attempt"], job["phase"]) == ("running", 1, "claim")
    assert server.messages(job_id)[-1] == "claimed by worker-1"


def test_the_oldest_job_goes_first(server: Server) -> None:
    file_id = server.good_file()
    jobs = [server.create_job(file_id) for _ in range(4)]
    assert [server.worker.claim()["job_id"] for _ in range(4)] == jobs


def test_a_job_queued_again_keeps_its_place(server: Server) -> None:
    file_id = server.good_file()
    first, second = server.create_job(file_id), server.create_job(file_id)
    server.worker.report(server.worker.claim(), outcome={"state": "released"})
    assert [server.worker.claim()["job_id"] for _ in range(2)] == [first, second]


def test_of_many_claimers_one_gets_the_job(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda i: server.worker.claim_reply(f"worker-{i}"), range(8)))
    assert Counter(reply.status_code for reply in replies) == {200: 1, 204: 7}
    assert server.job(job_id)["attempt"] == 1
    assert sum(message.startswith("claimed") for message in server.messages(job_id)) == 1


def test_many_claimers_get_a_job_each(server: Server) -> None:
    file_id = server.good_file()
    jobs = {server.create_job(file_id) for _ in range(8)}
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda i: server.worker.claim(f"worker-{i}"), range(8)))
    assert {claim["job_id"] for claim in claims} == jobs


def test_each_claim_has_a_higher_fence(server: Server) -> None:
    server.create_job(server.good_file())
    fences = []
    for _ in range(3):
        claim = server.worker.claim()
        fences.append(claim["fence"])
        server.worker.report(claim, outcome={"state": "released"})
    assert fences == [1, 2, 3]


@pytest.mark.parametrize("body", [{}, {"worker_id": ""}, {"worker_id": "w", "extra": 1}])
def test_a_malformed_claim_is_refused(server: Server, body: dict[str, object]) -> None:
    assert server.worker.post("/internal/jobs/claim", json=body).status_code == 400


def test_a_worker_gets_no_job_whose_base_model_it_does_not_have(server: Server) -> None:
    server.create_job(server.good_file())
    assert server.worker.hello("elsewhere", models=["other"]).json()["jobs_waiting"] is False
    claim = {"worker_id": "elsewhere"}
    assert server.worker.post("/internal/jobs/claim", json=claim).status_code == 204
    assert server.worker.claim_reply("here").status_code == 200


def test_a_hub_model_may_go_to_any_worker(server: Server) -> None:
    server.create_job(server.good_file(), model="org/name")
    assert server.worker.hello("elsewhere", models=[]).json()["jobs_waiting"] is True
    claim = {"worker_id": "elsewhere"}
    assert server.worker.post("/internal/jobs/claim", json=claim).status_code == 200


def test_success_without_files_or_with_files_that_are_not_stored_is_refused(
    server: Server,
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    outcome = {"state": "succeeded", "step": 1, "trained_tokens": 1}
    ghost = {"name": "a.safetensors", "bytes": 3, "sha256": "0" * 64}
    for files, status in (([], 400), ([ghost], 409)):  # 409: the worker uploads the file again
        reply = server.worker.report_reply(claim, outcome={**outcome, "files": files})
        assert reply.status_code == status
    stored = server.worker.store(claim, {"a.safetensors": b"abc"})
    wrong = [{**stored[0], "bytes": 4}]
    reply = server.worker.report_reply(claim, outcome={**outcome, "files": wrong})
    assert reply.status_code == 409
    assert server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}")["state"] == "running"


def test_hello_says_whether_a_job_waits(server: Server) -> None:
    hello = {
        "worker_id": "w", "queue": "train", "host": "h", "device": "cpu", "version": "1",
        "models": ["other-model"],
    }  # fmt: skip
    first = server.worker.post("/internal/workers/hello", json=hello)
    assert first.json() == {"jobs_waiting": False, "files_waiting": []}
    server.create_job(server.good_file())
    hello["models"] = ["other-model", "tiny-llama"]
    again = server.worker.post("/internal/workers/hello", json=hello)
    assert again.json()["jobs_waiting"] is True
    models = {model["id"] for model in server.user.json("/v1/models")["data"]}
    assert models == {"tiny-llama", "other-model"}


def test_hello_names_unread_files_to_a_light_worker(server: Server) -> None:
    server.create_job(server.good_file())
    unread = [server.upload(content) for content in (b"one", b"two", b"three")]
    server.worker.claim_reading(unread[1])
    reply = server.worker.hello("light-1", queue="light")
    assert reply.json() == {"jobs_waiting": False, "files_waiting": [unread[0], unread[2]]}
    assert server.worker.hello().json()["files_waiting"] == []


def test_the_service_is_ready_while_a_train_worker_is_there(server: Server) -> None:
    hello = {"worker_id": "w", "queue": "train", "host": "h", "device": "cpu", "version": "1"}
    assert server.anonymous.get("/healthz").json() == {"status": "ok"}
    server.worker.post(
        "/internal/workers/hello", json={**hello, "worker_id": "l", "queue": "light"}
    )
    assert server.anonymous.get("/readyz").status_code == 503
    server.worker.post("/internal/workers/hello", json=hello)
    assert server.anonymous.json("/readyz") == {"status": "ready"}
    ready = server.user.json("/readyz")
    assert ready.pop("inference")["status"] == "off"
    assert ready == {"status": "ready", "workers": {"light": 1, "train": 1}, "not_ready": {}}
    server.worker.delete("/internal/workers/w")
    assert server.anonymous.get("/readyz").status_code == 503


def test_a_worker_that_takes_no_job_does_not_make_the_service_ready_and_says_why(
    server: Server,
) -> None:
    server.worker.hello("train@a-1-b", not_ready="the GPU has 77.0 GB free, 3.0 GB less")
    stranger = server.anonymous.get("/readyz")
    wrong_key = server.anonymous.get("/readyz", headers={"authorization": "Bearer ts-wrong"})
    for reply in (stranger, wrong_key):
        assert (reply.status_code, reply.json()["error"]["message"]) == (503, "not ready")
        assert "train" not in reply.text
    for caller in (server.user, server.worker):
        error = caller.get("/readyz").json()["error"]
        assert "train@a-1-b: the GPU has 77.0 GB free" in error["message"]
    server.worker.hello("train@c-2-d")
    shown = server.user.json("/readyz")
    assert shown["workers"] == {"train": 1}
    assert list(shown["not_ready"]) == ["train@a-1-b"]
    server.worker.hello("train@a-1-b")
    assert server.user.json("/readyz")["not_ready"] == {}

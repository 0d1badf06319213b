"""Evaluations on demand: requests, leases, one result however often workers die, and lm-eval's."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

from tunesmith_schema.queue import TRAIN_TASK
from tunesmith_server.models import EvaluationRow
from tunesmith_server.services.catalogue import evaluation_leases
from tunesmith_server.services.catalogue.evaluation_leases import MAX_LOST

from .actors import ROWS, Server

PATH, BASE = "/v1/evaluations", "tiny-llama"
RESULT: dict[str, Any] = {
    "verdict": "better by 0.31 ± 0.05 nats on 80 rows",
    "outcome": "better",
    "metric": "loss",
    "on": "file",
    "rows": 80,
    "rows_available": 80,
    "file": "rows.jsonl",
    "models": [{"model": "model", "loss": 1.19}, {"model": "against", "loss": 1.5}],
}
ERROR = {"category": "infrastructure", "code": "trainer_killed", "message": "killed"}
GRADER = {
    "type": "string_check",
    "name": "same",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "operation": "eq",
}


def create(server: Server, **body: Any) -> Any:
    reply = server.user.post(PATH, json={"model": BASE, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(server: Server, **body: Any) -> tuple[int, str, str]:
    reply = server.user.post(PATH, json={"model": BASE, **body})
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["message"]


def claim(server: Server, worker: str = "worker-1") -> Any:
    server.worker.hello(worker_id=worker)
    reply = server.worker.post("/internal/evaluations/claim", json={"worker_id": worker})
    assert reply.status_code in (200, 204), reply.text
    return reply.json() if reply.status_code == 200 else None


def end(server: Server, claimed: Any, state: str, worker: str = "worker-1", **fields: Any) -> Any:
    body = {"worker_id": worker, "fence": claimed["fence"], "state": state, **fields}
    return server.worker.post(
        f"/internal/evaluations/{claimed['evaluation_id']}/outcome", json=body
    )


def renew(server: Server, claimed: Any, worker: str = "worker-1") -> int:
    body = {"worker_id": worker, "fence": claimed["fence"]}
    path = f"/internal/evaluations/{claimed['evaluation_id']}/renew"
    return int(server.worker.post(path, json=body).status_code)


def lose(server: Server) -> None:
    """Let all leases expire, as after `kill -9` of their workers."""
    with server.database.write.begin() as session:
        session.execute(
            update(EvaluationRow).values(lease_until=EvaluationRow.lease_until - 10_000)
        )
    with server.database.write.begin() as session:
        evaluation_leases.take_back_expired(session, server.wake_ups)


def tuned_model(server: Server) -> tuple[str, str]:
    """Return the name of a tuned model and the id of its training file."""
    file_id = server.good_file()
    job_id = server.create_job(file_id)
    server.worker.succeed(server.worker.claim())
    return str(server.job(job_id)["fine_tuned_model"]), file_id


def test_an_evaluation_is_queued_claimed_and_stored(server: Server) -> None:
    model, training_file = tuned_model(server)
    server.wake_ups.sent.clear()
    other = server.good_file(ROWS * 2)
    made = create(server, model=model, file=other)
    assert (made["object"], made["status"], made["kind"]) == ("evaluation", "queued", "data")
    assert (made["against"], made["filename"]) == (BASE, "rows.jsonl")
    assert (TRAIN_TASK, made["id"]) in server.wake_ups.sent
    assert "training worker" in server.user.json(f"{PATH}/{made['id']}")["waiting_for"]
    assert server.worker.hello().json()["jobs_waiting"] is True
    claimed = claim(server)
    assert claimed["evaluation_id"] == made["id"]
    assert (claimed["on"], claimed["losses"], claimed["file"]["file_id"]) == ("file", True, other)
    assert (claimed["model"]["name"], claimed["model"]["base"]) == (model, BASE)
    assert claimed["against"] == {
        "name": BASE, "base": BASE, "base_files": None, "adapter_files": None
    }  # fmt: skip
    [file, *_] = claimed["model"]["adapter_files"]
    path = f"/internal/evaluations/{made['id']}/files/{file['sha256']}"
    assert server.worker.get(path, params={"fence": claimed["fence"]}).status_code == 200
    assert server.worker.get(path, params={"fence": claimed["fence"] + 1}).status_code == 409
    credential = server.worker.credential("worker-1")
    for file_id, status in ((other, 200), (training_file, 409)):
        content = server.anonymous.get(f"/internal/files/{file_id}/content", headers=credential)
        assert content.status_code == status
    assert server.user.delete(f"/v1/files/{other}").json()["error"]["code"] == "file_in_use"
    assert renew(server, claimed) == 200
    assert end(server, claimed, "succeeded", result=RESULT).status_code == 200
    found = server.user.json(f"{PATH}/{made['id']}")
    assert (found["status"], found["verdict"]) == ("succeeded", RESULT["verdict"])
    assert found["result"]["models"][1]["loss"] == 1.5
    assert found["started_at"]
    assert found["finished_at"]
    [listed] = server.user.json(PATH)["data"]
    assert (listed["verdict"], listed["result"]) == (RESULT["verdict"], None)
    assert server.user.json(PATH, params={"model": BASE})["data"] == []
    assert claim(server) is None
    assert server.user.delete(f"{PATH}/{made['id']}").json()["deleted"] is True
    assert server.user.get(f"{PATH}/{made['id']}").status_code == 404
    # Rows that the model was trained on say nothing about new data.
    create(server, model=model, file=training_file)
    assert claim(server)["on"] == "training_file"


def test_a_killed_worker_s_evaluation_runs_again_and_is_stored_once(server: Server) -> None:
    made = create(server, file=server.good_file())
    first = claim(server)
    assert claim(server, "worker-2") is None
    lose(server)
    second = claim(server, "worker-2")
    assert second["fence"] == first["fence"] + 1
    late = end(server, first, "succeeded", result={**RESULT, "verdict": "late"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "fenced_out")
    assert renew(server, first) == 409
    for _ in range(2):  # the first reply was lost
        assert end(server, second, "succeeded", "worker-2", result=RESULT).status_code == 200
    found = server.user.json(f"{PATH}/{made['id']}")
    assert (found["status"], found["verdict"]) == ("succeeded", RESULT["verdict"])


def test_an_evaluation_that_kills_every_process_fails(server: Server) -> None:
    made = create(server, file=server.good_file())
    assert end(server, claim(server), "released").status_code == 200  # a shutdown does not count
    for _ in range(MAX_LOST - 1):
        lost = claim(server)
        assert lost is not None
        assert end(server, lost, "crashed", error=ERROR).status_code == 200
    assert claim(server) is not None
    lose(server)
    found = server.user.json(f"{PATH}/{made['id']}")
    assert (found["status"], found["error"]["code"]) == ("failed", "worker_lost")
    assert claim(server) is None


def test_a_cancelled_evaluation_ends_and_drops_its_result(server: Server) -> None:
    made = create(server, file=server.good_file())
    path, claimed = f"{PATH}/{made['id']}", claim(server)
    assert server.user.delete(path).json()["error"]["code"] == "not_deletable"
    for _ in range(2):
        assert server.user.post(f"{path}/cancel").json()["status"] == "cancelled"
    assert renew(server, claimed) == 409
    assert end(server, claimed, "succeeded", result=RESULT).status_code == 200
    found = server.user.json(path)
    assert (found["status"], found["result"]) == ("cancelled", None)
    done = create(server, file=made["file"])
    end(server, claim(server), "failed", error=ERROR)
    error = server.user.post(f"{PATH}/{done['id']}/cancel").json()["error"]
    assert error["code"] == "not_cancellable"


def test_a_job_that_waits_longer_goes_first(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    create(server, file=file_id)
    assert claim(server) is None
    server.worker.claim()
    assert claim(server) is not None


def test_a_worker_without_the_base_model_is_not_asked(server: Server) -> None:
    create(server, file=server.good_file())
    server.worker.hello(models=[])
    body = {"worker_id": "worker-1"}
    assert server.worker.post("/internal/evaluations/claim", json=body).status_code == 204
    assert claim(server) is not None


def test_requests_that_cannot_be_evaluated_name_the_field(server: Server) -> None:
    good, bad = server.good_file(), server.bad_file()
    assert refused(server, file="file-none")[:2] == (400, "file")
    assert refused(server)[0] == 400
    assert refused(server, model="nobody", file=good)[:2] == (404, "model")
    assert refused(server, against="nobody", file=good)[:2] == (404, "against")
    assert refused(server, against=BASE, file=good)[0] == 400
    status, param, message = refused(server, file=bad)
    assert (status, param) == (400, "file")
    assert "row 1" in message
    assert "not JSON" in message
    prompts = server.upload(b'{"prompt": "2 + 2?", "answer": "4"}\n', "prompts.jsonl")
    problems = {"problems": [{"row": 1, "message": "no answer"}], "num_problems": 1}
    server.validate(prompts, usable_for=["reinforcement"], refused={"supervised": problems})
    assert "grader" in refused(server, file=prompts)[2]
    made = create(server, file=prompts, grader=GRADER)
    claimed = claim(server)
    assert (claimed["losses"], claimed["grader"]["name"]) == (False, made["grader"]["name"])


def test_bad_rows_that_are_found_later_fail_the_evaluation(server: Server) -> None:
    file_id = server.upload(b"not json\n", "bad.jsonl")
    made = create(server, file=file_id)
    waits = server.user.json(f"{PATH}/{made['id']}")["waiting_for"]
    assert waits == "a worker that validates files: none is running"
    assert server.worker.hello("light", queue="light").status_code == 200
    waits = server.user.json(f"{PATH}/{made['id']}")["waiting_for"]
    assert waits == "the validation of its file"
    assert claim(server) is None
    server.wake_ups.sent.clear()
    problems = [{"row": 7, "message": "not JSON"}]
    server.validate(file_id, ok=False, format=None, problems=problems, num_problems=1)
    assert (TRAIN_TASK, made["id"]) in server.wake_ups.sent
    assert claim(server) is None
    found = server.user.json(f"{PATH}/{made['id']}")
    assert (found["status"], found["error"]["code"]) == ("failed", "dataset_invalid")
    assert "row 7" in found["error"]["message"]


def test_a_model_that_is_deleted_before_the_claim_fails_the_evaluation(server: Server) -> None:
    model, _ = tuned_model(server)
    made = create(server, model=model, file=server.good_file())
    assert server.user.delete(f"/v1/models/{model}").status_code == 200
    assert claim(server) is None
    found = server.user.json(f"{PATH}/{made['id']}")
    assert (found["status"], found["error"]["code"]) == ("failed", "model_not_found")
    assert model in found["error"]["message"]


def test_a_repeated_create_makes_one_evaluation(server: Server) -> None:
    body, key = {"model": BASE, "file": server.good_file()}, {"Idempotency-Key": "k"}
    first = server.user.post(PATH, json=body, headers=key)
    again = server.user.post(PATH, json=body, headers=key)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["idempotent-replayed"] == "true"
    other = server.user.post(PATH, json={**body, "grader": GRADER}, headers=key)
    assert other.status_code == 409


def test_results_of_lm_eval_are_stored_and_listed_the_same_way(server: Server) -> None:
    task = {"task": "capitals", "metrics": {"acc,none": 0.5}, "errors": {"acc,none": 0.1}}
    made = create(server, kind="tasks", task_results={"harness": "lm-eval 0.4.13", "tasks": [task]})
    assert (made["status"], made["verdict"]) == ("succeeded", "capitals acc 0.5000 ± 0.1000")
    [listed] = server.user.json(PATH)["data"]
    assert listed["task_results"]["tasks"][0]["metrics"] == {"acc,none": 0.5}
    assert claim(server) is None
    assert refused(server, kind="tasks")[0] == 400

"""Files of a job: which there are, and what is in those that are made when they are read."""

from __future__ import annotations

import json

import pytest

from tunesmith_schema.report_example import REPORT_EXAMPLE
from tunesmith_server.models import ReportRow

from .actors import Server
from .callers import VERDICT, event, metrics

JOBS = "/v1/fine_tuning/jobs"


def test_a_new_job_has_its_data_recipe_and_log(server: Server) -> None:
    job_id = server.create_job(server.good_file(), suffix="first", seed=3)
    found = server.user.json(f"{JOBS}/{job_id}/files")["data"]
    assert [file["kind"] for file in found] == ["training_file", "recipe", "log"]
    reply = server.user.get(f"{JOBS}/{job_id}/files/recipe.json")
    assert reply.headers["content-type"] == "application/json"
    assert (reply.json()["seed"], reply.json()["recipe"]["tuning"]) == (3, "lora")
    again = server.user.post(JOBS, json=reply.json())
    assert (again.status_code, again.json()["suffix"]) == (200, "first")


def test_an_ended_job_has_all_files_and_each_path_answers(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    files = server.worker.store(claim, {"a.safetensors": b"x"})
    saved = event(2, kind="checkpoint", data={"step": 2}, files=files)
    server.worker.report(claim, events=[metrics(1, 1, train_loss=1.0), saved])
    server.worker.succeed(claim, verification=json.dumps(VERDICT).encode())
    with server.user_session() as session, session.begin():
        content = {**REPORT_EXAMPLE, "job_id": job_id}
        session.merge(ReportRow(job_id=job_id, attempt=1, updated_at=1.0, content=content))
    found = server.user.json(f"{JOBS}/{job_id}/files")["data"]
    assert {file["kind"] for file in found} == {
        "training_file", "recipe", "environment", "log", "metrics", "report", "weights",
        "verification",
    }  # fmt: skip
    names = [file["id"] for file in found]
    assert len(names) == len(set(names))
    for file in found:
        reply = server.user.get(file["path"])
        assert reply.status_code == 200, (file, reply.text)
        assert file["bytes"] in (None, len(reply.content)), file
    environment = server.user.json(f"{JOBS}/{job_id}/files/environment.json")
    assert environment["versions"] == VERDICT["made_with"]
    attempt = environment["attempts"][0]
    assert {name: attempt[name] for name in ("device", "host", "versions")} == {
        name: REPORT_EXAMPLE[name] for name in ("device", "host", "versions")
    }


def test_the_log_has_events_but_no_metrics_and_no_control_characters(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    forged = event(2, message="a\n2026-01-01T00:00:00Z attempt 1 info forged\x1b[2J\u202e")
    server.worker.report(claim, events=[metrics(1, 1, train_loss=1.0), forged])
    reply = server.user.get(f"{JOBS}/{job_id}/files/log.txt")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    lines = reply.text.splitlines()
    assert lines[-1].endswith(
        "attempt 1 info a\\n2026-01-01T00:00:00Z attempt 1 info forged\\x1b[2J\\u202e"
    )
    assert len(lines) == len(server.messages(job_id)) - 1


@pytest.mark.parametrize("name", ["other", "report.json", "..%2Frecipe.json"])
def test_an_unknown_name_is_refused(server: Server, name: str) -> None:
    job_id = server.create_job(server.good_file())
    assert server.user.get(f"{JOBS}/{job_id}/files/{name}").status_code == 404

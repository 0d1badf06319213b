"""`client.fine_tuning.jobs.validate` and `tunesmith jobs create --validate-only`."""

from __future__ import annotations

import json

from .conftest import Tunesmith
from .local_server import LocalServer

TARGET = "/v1/fine_tuning/jobs?validate_only=true"
COMMAND = ("jobs", "create", "--model", "m", "--data", "file-1", "--validate-only")
PROBLEM = {
    "param": "model", "message": "no model 'm'", "code": "model_not_found",
    "hint": "GET /v1/models lists all models",
}  # fmt: skip


def test_the_command_sends_the_body_and_prints_all_problems(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    answer = {
        "object": "fine_tuning.job.validation",
        "valid": False,
        "problems": [PROBLEM, {**PROBLEM, "message": "no file 'file-1'", "hint": None}],
    }
    server.answers["POST /v1/fine_tuning/jobs"] = answer
    done = tunesmith(*COMMAND, "--recipe", "lora.r=0")
    assert (done.exit_code, server.seen[0].target) == (1, TARGET), done.output
    sent = {"model": "m", "training_file": "file-1", "recipe": {"lora": {"r": 0}}}
    assert json.loads(server.seen[0].body) == sent
    assert done.stderr.splitlines() == [
        "error: no model 'm'",
        "hint: `tunesmith models list` lists all models",
        "error: no file 'file-1'",
    ]
    done = tunesmith(*COMMAND, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (1, answer)


def test_a_valid_request_is_said_to_be_valid(tunesmith: Tunesmith, server: LocalServer) -> None:
    answer = {"object": "fine_tuning.job.validation", "valid": True, "problems": []}
    server.answers["POST /v1/fine_tuning/jobs"] = answer
    done = tunesmith(*COMMAND)
    assert (done.exit_code, done.stdout) == (0, "the server would create this job\n")

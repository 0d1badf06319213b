"""`client.evaluations`, `tunesmith eval` and `tunesmith evaluations`, against a scripted server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tunesmith import EvaluationNotSucceededError, InvalidArgumentError, WaitTimeoutError
from tunesmith._sdk.harness import read_results

from .conftest import Tunesmith
from .fakes import Script, client_of
from .local_server import LocalServer

TUNED = "ft:tiny:default::1"
MADE: dict[str, Any] = {
    "id": "eval-1",
    "object": "evaluation",
    "kind": "data",
    "created_at": 1,
    "model": TUNED,
    "against": "tiny",
    "file": "file-1",
    "filename": "rows.jsonl",
    "status": "queued",
    "waiting_for": "a free training worker that has the base model",
}
RESULT: dict[str, Any] = {
    "verdict": "better by 0.31 ± 0.05 nats on 80 rows",
    "outcome": "better",
    "metric": "reward",
    "on": "file",
    "rows": 80,
    "rows_available": 80,
    "answer_tokens": 400,
    "file": "rows.jsonl",
    "models": [
        {"model": "model", "loss": 1.19, "perplexity": 3.29, "token_accuracy": 0.7, "reward": 0.5},
        {"model": "against", "loss": 1.5, "perplexity": 4.5, "token_accuracy": 0.6, "reward": 0.25},
    ],
    "comparisons": [],
    "answers": [],
}
DONE = {**MADE, "status": "succeeded", "verdict": RESULT["verdict"], "result": RESULT}
FAILED = {
    **MADE,
    "status": "failed",
    "error": {"code": "dataset_invalid", "message": "rows.jsonl, row 4: answer is a int"},
}
HARNESS: dict[str, Any] = {
    "results": {
        "capitals": {
            "alias": "capitals",
            "acc,none": 0.5,
            "acc_stderr,none": 0.1,
            "bleu,none": float("nan"),
            "bleu_stderr,none": "N/A",
        }
    },
    "versions": {"capitals": 1.0},
    "n-shot": {"capitals": 0},
    "n-samples": {"capitals": {"original": 20, "effective": 8}},
}


def answers(*bodies: dict[str, Any]) -> list[httpx.Response]:
    return [httpx.Response(200, json=body) for body in bodies]


def test_the_sdk_creates_an_evaluation_and_waits_for_it() -> None:
    running = {**MADE, "status": "running", "waiting_for": None}
    script = Script(*answers(MADE, MADE, running, DONE))
    seen = []
    with client_of(script) as client:
        made = client.evaluations.create(model=TUNED, file="file-1")
        ended = client.evaluations.wait(made.id, on_state=lambda e: seen.append(str(e.status)))
    assert ended.result is not None
    assert ended.result.models[0].loss == 1.19
    assert seen == ["queued", "running", "succeeded"]
    assert json.loads(script.requests[0].content) == {
        "kind": "data",
        "model": TUNED,
        "file": "file-1",
    }
    assert script.requests[0].headers["idempotency-key"]


def test_a_failed_evaluation_raises_with_its_reason_and_a_slow_one_too() -> None:
    with client_of(Script(*answers(FAILED))) as client:
        with pytest.raises(EvaluationNotSucceededError, match="row 4") as failed:
            client.evaluations.wait("eval-1")
        assert failed.value.evaluation.id == "eval-1"
    with (
        client_of(Script(*answers(MADE))) as client,
        pytest.raises(WaitTimeoutError, match="free training worker"),
    ):
        client.evaluations.wait("eval-1", timeout=0.0)


def test_arguments_are_checked_before_anything_is_sent() -> None:
    script = Script()
    with client_of(script) as client:
        wrong: list[dict[str, Any]] = [
            {},
            {"file": "file-1", "against": TUNED},
            {"file": "no such file"},
        ]
        for arguments in wrong:
            with pytest.raises(InvalidArgumentError):
                client.evaluations.create(model=TUNED, **arguments)
    assert script.requests == []


def test_results_of_lm_eval_are_read_without_what_is_no_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.4.13")
    found = read_results(HARNESS, 8)
    [task] = found.tasks
    assert (found.harness, found.limit) == ("lm-eval 0.4.13", 8)
    assert (task.task, task.version, task.samples, task.n_shot) == ("capitals", "1.0", 8, 0)
    assert (task.metrics, task.errors) == ({"acc,none": 0.5}, {"acc,none": 0.1})


def test_the_command_evaluates_against_the_base_model(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    model = {"id": TUNED, "created": 1, "owned_by": "tunesmith", "base_model": "tiny"}
    server.answers[f"GET /v1/models/{quote(TUNED)}"] = model
    server.answers["POST /v1/evaluations"] = MADE
    server.answers["GET /v1/evaluations/eval-1"] = DONE
    done = tunesmith("eval", TUNED, "--data", "file-1", "--against", "base")
    assert done.exit_code == 0, done.output
    assert RESULT["verdict"] in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["model:", TUNED] in lines
    assert ["against:", "tiny"] in lines
    assert ["model", "0.5", "1.19", "3.29", "0.7"] in lines
    done = tunesmith("evaluations", "show", "eval-1", "--json")
    assert json.loads(done.stdout) == DONE


def test_the_command_names_what_is_missing_or_has_no_effect(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    for arguments, words in (
        ((), "--data FILE, or --tasks"),
        (("--limit", "3"), "no rows and no tasks to evaluate on"),
        (("--data", "file-1", "--limit", "3"), "--limit has no effect with --data"),
        (("--tasks", "arc", "--data", "file-1"), "--data has no effect with --tasks"),
    ):
        done = tunesmith("eval", TUNED, *arguments)
        assert (done.exit_code, words in done.stderr) == (2, True), done.stderr


def test_evaluations_are_listed_with_their_verdicts(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    tasks = {"harness": "lm-eval 0.4.13", "tasks": [{"task": "t", "metrics": {"acc,none": 0.5}}]}
    stored = {**DONE, "kind": "tasks", "verdict": "t acc 0.5", "result": None}
    server.answers["GET /v1/evaluations"] = {
        "object": "list",
        "data": [{**DONE, "result": None}, {**stored, "id": "eval-2", "task_results": tasks}],
        "has_more": False,
    }
    done = tunesmith("evaluations", "list")
    assert done.exit_code == 0, done.output
    assert "eval-1" in done.stdout
    assert "t acc 0.5" in " ".join(done.stdout.split())


def test_results_of_tasks_have_their_standard_errors(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    task = {"task": "t", "metrics": {"acc,none": 0.5}, "errors": {"acc,none": 0.1}}
    results = {"harness": "lm-eval 0.4.13", "tasks": [task]}
    stored = {**DONE, "kind": "tasks", "result": None, "task_results": results}
    server.answers["GET /v1/evaluations/eval-1"] = stored
    done = tunesmith("evaluations", "show", "eval-1")
    assert done.exit_code == 0, done.output
    assert "t acc,none 0.5000 ± 0.1000" in " ".join(done.stdout.split())


def test_without_lm_eval_the_command_names_the_extra(
    tunesmith: Tunesmith, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunesmith._sdk.harness.find_spec", lambda name: None)
    server.answers["GET /v1/models/tiny"] = {"id": "tiny", "created": 1, "owned_by": "base"}
    done = tunesmith("eval", "tiny", "--tasks", "arc_easy")
    assert done.exit_code == 2
    assert "lm_eval" in done.stderr
    assert "pip install 'tunesmith[eval]'" in done.stderr

"""Pause, resume, stop, cancel, fork and retry in the SDK and the CLI."""

from __future__ import annotations

import json

import httpx
import pytest

from tunesmith import Hyperparameters, InvalidArgumentError, Job, LoraRecipe, Recipe
from tunesmith._cli import control

from .conftest import Tunesmith
from .fakes import Script, client_of, job
from .local_server import LocalServer

JOBS = "/v1/fine_tuning/jobs"
FORK = job(id="ftjob-2", forked_from="ftjob-1", forked_step=300)


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "stop", "retry"])
def test_each_command_is_one_post_without_a_body(verb: str) -> None:
    script = Script(httpx.Response(200, json=job("queued")))
    made = getattr(client_of(script).fine_tuning.jobs, verb)("ftjob-1")
    assert isinstance(made, Job)
    [request] = script.requests
    assert (request.method, request.url.path) == ("POST", f"{JOBS}/ftjob-1/{verb}")
    assert script.bodies == [b""]


def test_a_job_is_deleted() -> None:
    answer = {"id": "ftjob-1", "object": "fine_tuning.job", "deleted": True}
    script = Script(httpx.Response(200, json=answer))
    assert client_of(script).fine_tuning.jobs.delete("ftjob-1").deleted
    [request] = script.requests
    assert (request.method, request.url.path) == ("DELETE", f"{JOBS}/ftjob-1")


def test_a_command_updates_the_job_in_place() -> None:
    answers = [
        job("running"),
        job("pausing", status="running"),
        job("running"),
        job("running", stop_requested=True),
    ]
    script = Script(*(httpx.Response(200, json=answer) for answer in answers))
    held = client_of(script).fine_tuning.jobs.retrieve("ftjob-1")
    assert held.pause().state == "pausing"
    assert held.resume().state == "running"
    assert held.stop().stop_requested
    assert held.stop_requested


def test_a_fork_sends_what_changes_and_nothing_else() -> None:
    script = Script(httpx.Response(200, json=FORK))
    jobs = client_of(script).fine_tuning.jobs
    jobs.fork(
        "ftjob-1",
        step=400,
        recipe=Recipe(learning_rate=1e-5, lora=LoraRecipe(lora_dropout=0.1)),
        hyperparameters=Hyperparameters(n_epochs=5),
    )
    assert json.loads(script.bodies[0]) == {
        "step": 400,
        "recipe": {"learning_rate": 1e-5, "lora": {"lora_dropout": 0.1}},
        "hyperparameters": {"n_epochs": 5},
    }
    assert jobs.fork("ftjob-1").forked_step == 300
    assert json.loads(script.bodies[1]) == {}
    keys = [request.headers["idempotency-key"] for request in script.requests]
    assert len(set(keys)) == 2


def test_a_fork_from_two_places_is_refused_before_anything_is_sent() -> None:
    script = Script(httpx.Response(200, json=FORK))
    with pytest.raises(InvalidArgumentError, match="set only one"):
        client_of(script).fine_tuning.jobs.fork("ftjob-1", step=4, checkpoint="ftckpt-1")
    assert script.requests == []


@pytest.mark.parametrize(
    ("verb", "answer", "said"),
    [
        (
            "cancel",
            job("running", cancel_requested=True),
            "cancellation of ftjob-1 requested; the job is still running",
        ),
        ("cancel", job("cancelled"), "cancelled ftjob-1"),
        ("pause", job("paused", status="queued"), "paused ftjob-1"),
        (
            "pause",
            job("pausing", status="running"),
            "pause of ftjob-1 requested; the job saves a resume point first",
        ),
        ("resume", job("queued"), "queued ftjob-1 again"),
        ("resume", job("running"), "ftjob-1 is running"),
        (
            "stop",
            job("running", stop_requested=True),
            "stop of ftjob-1 requested; the job ends at its next step and keeps its result",
        ),
        ("fork", FORK, "created ftjob-2 from step 300 of ftjob-1"),
        ("retry", job(id="ftjob-2"), "created ftjob-2, a retry of ftjob-1 from the beginning"),
        ("retry", FORK, "created ftjob-2, a retry of ftjob-1 from step 300"),
        (
            "retry",
            FORK | {"forked_from": "ftjob-0"},
            "created ftjob-2, a retry of ftjob-1 from step 300 of ftjob-0",
        ),
    ],
)
def test_each_command_prints_its_outcome_in_one_line(
    tunesmith: Tunesmith, server: LocalServer, verb: str, answer: dict[str, object], said: str
) -> None:
    server.answers[f"POST {JOBS}/ftjob-1/{verb}"] = answer
    done = tunesmith("jobs", verb, "ftjob-1")
    assert (done.exit_code, done.stdout) == (0, f"{said}\n")
    assert json.loads(tunesmith("jobs", verb, "ftjob-1", "--json").stdout) == answer


@pytest.mark.parametrize(
    ("terminal", "options", "answer", "cancelled"),
    [
        (True, (), "n\n", False),
        (True, (), "y\n", True),
        (True, ("--yes",), "", True),
        (False, (), "", True),
    ],
)
def test_delete_asks_once_on_a_terminal(
    server: LocalServer,
    tunesmith: Tunesmith,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    options: tuple[str, ...],
    answer: str,
    cancelled: bool,
) -> None:
    server.answers[f"DELETE {JOBS}/ftjob-1"] = {"id": "ftjob-1", "deleted": True}
    monkeypatch.setattr(control, "_stdin_is_terminal", lambda: terminal)
    done = tunesmith("jobs", "delete", "ftjob-1", *options, input=answer)
    assert done.stderr.count("Delete ftjob-1") == bool(answer)
    assert done.exit_code == (0 if cancelled else 1)
    assert ("deleted ftjob-1\n" in done.stdout) == cancelled
    assert [seen.method for seen in server.seen] == ["DELETE"] * cancelled


@pytest.mark.parametrize(
    ("terminal", "options", "answer", "cancelled"),
    [
        (True, (), "n\n", False),
        (True, (), "y\n", True),
        (True, ("--yes",), "", True),
        (False, (), "", True),
    ],
)
def test_cancel_asks_once_on_a_terminal(
    server: LocalServer,
    tunesmith: Tunesmith,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    options: tuple[str, ...],
    answer: str,
    cancelled: bool,
) -> None:
    server.answers[f"POST {JOBS}/ftjob-1/cancel"] = job("cancelled")
    monkeypatch.setattr(control, "_stdin_is_terminal", lambda: terminal)
    done = tunesmith("jobs", "cancel", "ftjob-1", *options, input=answer)
    assert done.stderr.count("Cancel ftjob-1?") == bool(answer)
    assert done.exit_code == (0 if cancelled else 1)
    assert [seen.method for seen in server.seen] == ["POST"] * cancelled


def test_a_fork_takes_its_recipe_as_create_does(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"POST {JOBS}/ftjob-1/fork"] = FORK
    tunesmith(
        *("jobs", "fork", "ftjob-1", "--step", "400", "--recipe", "learning_rate=1e-5"),
        *("--recipe", "lora.lora_dropout=0.1", "--suffix", "slower"),
    )
    assert json.loads(server.seen[0].body) == {
        "step": 400,
        "recipe": {"learning_rate": 1e-5, "lora": {"lora_dropout": 0.1}},
        "suffix": "slower",
    }


def test_a_refusal_is_shown_with_its_hint_and_status_1(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    message = "job 'ftjob-1' has already succeeded and cannot be paused"
    error = {"message": message, "type": "invalid_request_error", "hint": "fork it"}
    server.answers[f"POST {JOBS}/ftjob-1/pause"] = (400, {"error": error})
    done = tunesmith("jobs", "pause", "ftjob-1")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[:2] == [f"error: {message}", "hint: fork it"]

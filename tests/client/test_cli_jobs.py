"""`tunesmith jobs` against a local server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunesmith import Job
from tunesmith._cli.recipe import build_recipe

from .conftest import Tunesmith
from .fakes import event, job, page, sse
from .local_server import LocalServer

JOBS = "/v1/fine_tuning/jobs"
CREATE = ("jobs", "create", "--model", "tiny", "--data", "file-1")
LONG_ID = "ftjob-0123456789abcdef01234567"


def test_create_builds_the_recipe_from_dotted_keys(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    server.answers[f"POST {JOBS}"] = job()
    done = tunesmith(
        *[
            "jobs",
            "create",
            "--model",
            "tiny",
            "--data",
            "file-1",
            "--suffix",
            "x",
            "--seed",
            "3",
            "--n-epochs",
            "2",
        ],
        "--recipe",
        "lora.r=16",
        "--recipe",
        "precision=bf16",
        "--recipe",
        "packing=true",
    )
    assert done.exit_code == 0, done.output
    assert "ftjob-1" in done.stdout
    assert json.loads(server.seen[0].body) == {
        "model": "tiny",
        "training_file": "file-1",
        "suffix": "x",
        "seed": 3,
        "hyperparameters": {"n_epochs": 2},
        "recipe": {"lora": {"r": 16}, "precision": "bf16", "packing": True},
    }


def test_create_takes_the_recipe_from_a_file(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    server.answers[f"POST {JOBS}"] = job()
    (tmp_path / "recipe.json").write_text('{"tuning": "lora", "lora": {"r": 4}}')
    tunesmith(
        *CREATE,
        "--recipe-file",
        "recipe.json",
        "--recipe",
        "lora.r=8",
    )
    assert json.loads(server.seen[0].body)["recipe"] == {"tuning": "lora", "lora": {"r": 8}}


def test_metadata_is_sent_and_shown(tunesmith: Tunesmith, server: LocalServer) -> None:
    labels = {"team": "support", "note": "a=b"}
    server.answers[f"POST {JOBS}"] = job(metadata=labels)
    done = tunesmith(*CREATE, "--metadata", "team=support", "--metadata", "note=a=b")
    assert json.loads(server.seen[0].body)["metadata"] == labels
    assert "team=support, note=a=b" in done.stdout
    server.answers[f"GET {JOBS}/ftjob-1"] = job(metadata=labels)
    assert "team=support, note=a=b" in tunesmith("jobs", "show", "ftjob-1").stdout


@pytest.mark.parametrize("pairs", [["team"], ["=support"], ["team=a", "team=b"]])
def test_malformed_metadata_is_a_usage_error(
    tunesmith: Tunesmith, server: LocalServer, pairs: list[str]
) -> None:
    done = tunesmith(*CREATE, *(word for pair in pairs for word in ("--metadata", pair)))
    assert done.exit_code == 2
    assert "--metadata" in done.stderr
    assert not server.seen


@pytest.mark.parametrize("pair", ["lora.r", "=3", "lora..r=1"])
def test_a_malformed_recipe_is_a_usage_error(tunesmith: Tunesmith, pair: str) -> None:
    done = tunesmith(*CREATE, "--recipe", pair)
    assert done.exit_code == 2
    assert "KEY=VALUE" in done.stderr


def test_recipe_values_are_json_or_words() -> None:
    pairs = ["learning_rate=1e-3", "packing=false", "max_steps=auto", 'a.b=["c"]']
    assert build_recipe(pairs, None) == {
        "learning_rate": 0.001,
        "packing": False,
        "max_steps": "auto",
        "a": {"b": ["c"]},
    }
    assert build_recipe([], None) is None


def test_a_refused_value_names_the_field_and_exits_2(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    done = tunesmith(*CREATE, "--recipe", "lora.r=0")
    assert done.exit_code == 2
    assert done.stderr.startswith("error: recipe.lora.r (got 0)")
    assert server.seen == []


GRADER = {"type": "math_answer", "reference": "{{item.answer}}"}


@pytest.mark.parametrize("inline", [True, False])
def test_a_grader_makes_it_reinforcement(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path, inline: bool
) -> None:
    server.answers[f"POST {JOBS}"] = job()
    (tmp_path / "grader.json").write_text(json.dumps(GRADER))
    given = json.dumps(GRADER) if inline else "grader.json"
    done = tunesmith(*CREATE, "--grader", given, "--batch-size", "4", "--eval-samples", "2")
    assert done.exit_code == 0, done.output
    assert json.loads(server.seen[-1].body)["method"] == {
        "type": "reinforcement",
        "reinforcement": {
            "grader": GRADER,
            "hyperparameters": {"batch_size": 4, "eval_samples": 2},
        },
    }
    assert "hyperparameters" not in json.loads(server.seen[-1].body)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--method", "reinforcement"), "reinforcement needs --grader"),
        (("--method", "supervised", "--grader", "{}"), "supervised training uses no grader"),
        (("--grader", "{]"), "the value is not JSON"),
        (("--grader", "nowhere.json"), "file not found: nowhere.json"),
        (("--grader", "."), "is a directory: ."),
        (("--grader", '{"type": "math_answer"}'), "reference: is required"),
    ],
)
def test_an_invalid_grader_is_refused_before_the_network(
    tunesmith: Tunesmith, server: LocalServer, options: tuple[str, ...], said: str
) -> None:
    done = tunesmith(*CREATE, *options)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.replace("\u2502", " ").split())
    assert not server.seen


def test_create_and_watch_shows_the_finished_job(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"POST {JOBS}"] = job()
    over = job("succeeded", fine_tuned_model="ft:tiny:x", adapter_id="adp-1")
    server.answers[f"GET {JOBS}/ftjob-1/events"] = sse(1, 2, done=over)
    done = tunesmith(*CREATE, "--watch", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == over


def test_watching_a_failed_job_shows_the_reason(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOBS}/ftjob-1"] = job("running")
    error = {"code": "out_of_memory", "message": "out of memory at batch 8", "hint": "try 4"}
    server.answers[f"GET {JOBS}/ftjob-1/events"] = sse(1, done=job("failed", error=error))
    done = tunesmith("jobs", "watch", "ftjob-1")
    assert done.exit_code == 1
    assert "error: job ftjob-1 failed (out_of_memory): out of memory at batch 8" in done.stderr
    assert "hint: try 4" in done.stderr
    assert "Traceback" not in done.output


def test_ctrl_c_while_watching_says_that_the_job_continues(
    tunesmith: Tunesmith, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "wait", interrupted)
    server.answers[f"GET {JOBS}/ftjob-1"] = job("running")
    done = tunesmith("jobs", "watch", "ftjob-1")
    assert done.exit_code == 130
    assert "ftjob-1 continues" in done.stderr


def test_the_list_fits_80_columns_with_whole_ids(tunesmith: Tunesmith, server: LocalServer) -> None:
    jobs = [job("validating_files", id=LONG_ID, step=5, total_steps=1000, model="org/" + "m" * 60)]
    server.answers[f"GET {JOBS}"] = page(*jobs)
    done = tunesmith("jobs", "list")
    assert LONG_ID in done.stdout
    assert "5/1000" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_json_is_what_the_server_sent(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOBS}"] = page(job(), has_more=True)
    server.answers[f"GET {JOBS}/ftjob-1"] = job(novelty=1)
    assert json.loads(tunesmith("jobs", "list", "--json").stdout) == page(job(), has_more=True)
    assert json.loads(tunesmith("jobs", "show", "ftjob-1", "--json").stdout) == job(novelty=1)


def test_logs_are_one_line_an_event(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOBS}/ftjob-1/events"] = page(
        event(1, "[red]queued"), event(2, "slow", level="warn")
    )
    lines = tunesmith("jobs", "logs", "ftjob-1").stdout.splitlines()
    assert [line[9:] for line in lines] == ["info  [red]queued", "warn  slow"]
    lines = tunesmith("jobs", "logs", "ftjob-1", "--json").stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


def test_logs_can_be_followed(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOBS}/ftjob-1/events"] = sse(1, 2, done=job("succeeded"))
    assert len(tunesmith("jobs", "logs", "ftjob-1", "--follow").stdout.splitlines()) == 2
    assert server.seen[0].target.endswith("?stream=true")

"""Lists, views, comparison and plots of jobs on a screen of 80 columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tunesmith import TunesmithError
from tunesmith._cli.curves import HEIGHT, Line, draw
from tunesmith._sdk import plot
from tunesmith._sdk.job import Job
from tunesmith_schema import JobReport, MetricPoint
from tunesmith_schema.settings_diff import changed_settings, differing_settings

from .conftest import Tunesmith
from .fakes import Script, client_of, event, job, page
from .local_server import LocalServer

JOBS = "/v1/fine_tuning/jobs"
LONG_ID = "ftjob-0123456789abcdef01234567"
BAD = {"state": "diverged", "text": "The training loss rose from 1.6 to 19.", "step": 3}


def columns(**curves: list[float | None]) -> dict[str, Any]:  # Any: JSON
    """Curves of a job, with a value for each step from 1."""
    found = {
        name: {"steps": [*range(1, len(values) + 1)], "values": values}
        for name, values in curves.items()
    }
    return {"job_id": "ftjob-1", "stretch": 1, "curves": found, "void": []}


def curve(job_id: str, *values: float | None) -> dict[str, Any]:  # Any: JSON
    return {"job_id": job_id, "x": [*range(1, len(values) + 1)], "values": list(values)}


def ended(job_id: str = "ftjob-1", **fields: Any) -> dict[str, Any]:  # Any: JSON
    about = {"id": job_id, "started_at": 1_700_000_010, "finished_at": 1_700_000_110, "attempt": 1}
    return job("succeeded", **{**about, "owner": "ann", "health": BAD, **fields})


def test_the_list_shows_name_health_metrics_and_duration(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    shown = ended(LONG_ID, suffix="rate-1", last_metrics={"train_loss": 2.7, "valid_loss": None})
    server.answers[f"GET {JOBS}"] = page(shown, job("running", phase="self_check"))
    lines = tunesmith("jobs", "list").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == [LONG_ID, "succeeded", "diverged"]
    about = " ".join(" ".join(lines[2:4]).split())
    assert about.startswith("rate-1: supervised of tiny, loss 2.7, valid NaN, 1:40, by ann")
    assert "running (self_check)" in "\n".join(lines)


def test_the_list_sends_its_filters(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOBS}"] = page()
    done = tunesmith(
        *("jobs", "list", "--state", "failed", "--state", "queued", "--method", "supervised"),
        *("--model", "tiny", "--text", "x", "--metadata", "team=red", "--since", "2026-01-31"),
        *("--finished-since", "2026-02-01", "--warned-since", "2026-02-02"),
    )
    assert done.exit_code == 0, done.output
    asked = httpx.URL(server.seen[0].target).params
    assert asked.get_list("state") == ["failed", "queued"]
    assert (asked["method"], asked["model"], asked["text"]) == ("supervised", "tiny", "x")
    assert asked["metadata[team]"] == "red"
    assert int(asked["created_after"]) > 1_769_000_000
    assert int(asked["finished_after"]) - int(asked["created_after"]) == 86_400
    assert int(asked["warned_after"]) - int(asked["created_after"]) == 2 * 86_400
    assert tunesmith("jobs", "list", "--since", "soon").exit_code == 2


def test_show_has_the_recipe_and_what_auto_became(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    recipe = {"learning_rate": 1.0, "lora": {"r": 4}}
    server.answers[f"GET {JOBS}/ftjob-1"] = ended(recipe=recipe, metadata={"team": "red"})
    report = JobReport.model_json_schema()["examples"][0]
    choice = {"name": "packing", "value": True, "reason": "short rows", "figures": {}}
    server.answers[f"GET {JOBS}/ftjob-1/report"] = report | {"choices": [choice]}
    text = " ".join(tunesmith("jobs", "show", "ftjob-1").stdout.split())
    assert "recipe lora.r=4 learning_rate=1 auto became packing=True" in text
    assert "health diverged: The training loss rose from 1.6 to 19." in text
    assert "next tunesmith jobs plot ftjob-1 tunesmith jobs report ftjob-1" in text


@pytest.mark.parametrize(
    ("category", "commands"),
    [
        ("data", "tunesmith files show file-1 tunesmith jobs logs ftjob-1"),
        ("grader", "tunesmith jobs logs ftjob-1"),
        ("infrastructure", "tunesmith jobs logs ftjob-1 tunesmith jobs retry ftjob-1"),
    ],
)
def test_a_failed_job_is_retried_only_if_that_can_help(
    tunesmith: Tunesmith, server: LocalServer, category: str, commands: str
) -> None:
    error = {"code": "x", "message": "x", "param": None, "category": category, "hint": None}
    failed = job("failed", error=error, training_file="file-1")
    server.answers[f"GET {JOBS}/ftjob-1"] = failed
    assert " ".join(tunesmith("jobs", "show", "ftjob-1").stdout.split()).endswith(
        f"next {commands}"
    )


def test_settings_of_another_value_than_the_default_are_found() -> None:
    one = Job.model_validate(job(recipe={"lora": {}}))
    two = Job.model_validate(job(recipe={"lora": {"r": 4}}, hyperparameters={"n_epochs": 2}))
    assert changed_settings(one) == {}
    assert changed_settings(two) == {"lora.r": 4, "n_epochs": 2}
    assert differing_settings([one, two]) == {"lora.r": [32, 4], "n_epochs": ["auto", 2]}


def test_jobs_are_compared_side_by_side(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    trained: list[dict[str, Any]] = []
    valid: list[dict[str, Any]] = []
    for name, rate, losses in (("a", 1.0, [1.6, 19.0, 2.7]), ("b", 1e-3, [1.6, 1.4, 1.2])):
        found = ended(f"ftjob-{name}", suffix=f"run-{name}", recipe={"learning_rate": rate})
        found["evaluation"] = {
            "verdict": f"verdict {name}",
            "metric": "loss",
            "on": "validation_file",
            "rows": 80,
            "base": 1.6,
            "tuned": losses[-1],
        }
        server.answers[f"GET {JOBS}/ftjob-{name}"] = found
        trained.append(curve(f"ftjob-{name}", *losses))
        valid.append(curve(f"ftjob-{name}", None, None, 1.5))
    different: dict[str, Any] = {  # Any: JSON
        "jobs": [], "settings": {"learning_rate": [1.0, 0.001]}, "axis": "step",
        "curves": {"train_loss": trained, "valid_loss": valid},
        "automatic": {"packing": [True, False]}, "environment": {"versions.torch": ["2.9", None]},
    }  # fmt: skip
    server.answers["GET /v1/fine_tuning/compare"] = different
    done = tunesmith("jobs", "compare", "ftjob-a", "ftjob-b", "--png", "both.png")
    assert done.exit_code == 0, done.output
    assert max(map(len, done.stdout.splitlines())) <= 80
    words = " ".join(done.stdout.split())
    assert "learning_rate 1 0.001" in words
    assert "packing (auto) True False versions.torch 2.9 - " in words
    assert "job ftjob-a ftjob-b" in words
    assert "evaluation verdict a verdict b" in words
    assert "base, tuned loss 1.6, 2.7 loss 1.6, 1.2" in words
    assert "A run-a, training a run-a, validation B run-b, training" in words
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")
    compared = json.loads(tunesmith("jobs", "compare", "ftjob-a", "ftjob-b", "--json").stdout)
    for name in ("settings", "automatic", "environment"):
        assert compared[name] == different[name]
    assert [result["name"] for result in compared["results"]] == ["run-a", "run-b"]
    eight = ["ftjob-a", "ftjob-b"] + [f"ftjob-{number}" for number in range(3, 9)]
    for job_id in eight[2:]:
        server.answers[f"GET {JOBS}/{job_id}"] = ended(job_id, suffix=f"run {job_id[-1]}")
        trained.append(curve(job_id, 1.0))
    server.seen.clear()
    shown = tunesmith("jobs", "compare", *eight, "--png", "eight.png").stdout
    asked = [httpx.URL(request.target) for request in server.seen]
    assert [url.path for url in asked[:-1]] == [f"{JOBS}/{job_id}" for job_id in eight]
    assert asked[-1].path == "/v1/fine_tuning/compare"
    assert int(asked[-1].params["points"]) <= 1000  # of 100,000 steps
    assert max(map(len, shown.splitlines())) <= 80
    assert "H run 8, training" in " ".join(shown.split())
    alone = tunesmith("jobs", "compare", "ftjob-a")
    assert (alone.exit_code, "name 2 to 8" in alone.stderr) == (2, True), alone.stderr


def test_one_job_is_plotted(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers[f"GET {JOBS}/ftjob-1"] = ended()
    curves = columns(reward=[n / 10 for n in range(1, 9)], train_loss=[0.0] * 8)
    server.answers[f"GET {JOBS}/ftjob-1/metrics"] = curves
    server.seen.clear()
    out = tunesmith("jobs", "plot", "ftjob-1").stdout
    assert "mean reward" in out
    assert "loss (nats" not in out
    assert out.splitlines()[-1] == f"diverged: {BAD['text']}"
    asked = httpx.URL(server.seen[-1].target).params
    assert asked["format"] == "columns"
    assert int(asked["points"]) <= 1000  # of 100,000 steps


def test_a_notebook_shows_the_plot_as_a_picture(tmp_path: Path) -> None:
    script = Script(
        httpx.Response(200, json=ended()),
        httpx.Response(200, json=columns(train_loss=[2.0, 1.0], valid_loss=[None, 1.5])),
    )
    with client_of(script) as client:
        shown = client.fine_tuning.jobs.retrieve("ftjob-1").plot(tmp_path / "loss.svg")
    assert shown._repr_png_().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "loss.svg").read_text()


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    with pytest.raises(TunesmithError, match="plots need matplotlib") as caught:
        plot.Plot(plot.panels_of({"x": [MetricPoint(id="1", step=1, values={"train_loss": 1.0})]}))
    assert "tunesmith[plot]" in str(caught.value.hint)


def test_a_curve_falls_from_the_top_left_to_the_bottom_right() -> None:
    line = Line(name="x", sign="*", steps=range(1, 101), values=[3 - n / 50 for n in range(100)])
    rows = draw([line], "loss").plain.splitlines()[1 : HEIGHT + 1]
    columns = [row.partition("|")[2].find("*") for row in rows]
    assert columns == sorted(columns)
    assert columns[0] == 0
    assert rows[-1].rstrip().endswith("*")
    assert draw([], "loss").plain == "loss: no values"


def test_short_phases_are_hidden_from_the_log(tunesmith: Tunesmith, server: LocalServer) -> None:
    phases = [
        event(n, f"{name} ended", kind="phase", data={"phase": name, "seconds": seconds})
        for n, (name, seconds) in enumerate([("load", 2.0), ("pack", 0.04)], start=1)
    ]
    server.answers[f"GET {JOBS}/ftjob-1/events"] = page(*phases)
    assert "pack" not in tunesmith("jobs", "logs", "ftjob-1").stdout
    assert "pack" in tunesmith("jobs", "logs", "ftjob-1", "--verbose").stdout
    assert "pack" in tunesmith("jobs", "logs", "ftjob-1", "--json").stdout


def test_checkpoints_are_listed_on_request(tunesmith: Tunesmith, server: LocalServer) -> None:
    server.answers["GET /v1/models"] = page()
    tunesmith("models", "list")
    tunesmith("models", "list", "--checkpoints")
    assert [request.target for request in server.seen] == [
        "/v1/models", "/v1/models?checkpoints=true",
    ]  # fmt: skip

"""`jobs.report` of the SDK, and `tunesmith jobs report` on a screen of 80 columns."""

from __future__ import annotations

import json
from io import StringIO

import httpx
import pytest
from rich.console import Console

from tunesmith import NotFoundError
from tunesmith._cli.report import render
from tunesmith_schema import JobReport, LayerMemory

from .conftest import Tunesmith
from .fakes import Script, client_of
from .local_server import LocalServer

EXAMPLE, REINFORCEMENT = JobReport.model_json_schema()["examples"]
JOB = EXAMPLE["job_id"]


def shown(report: JobReport) -> list[str]:
    out = StringIO()
    console = Console(file=out, width=80, markup=False, highlight=False, force_terminal=False)
    console.print(render(report))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_sdk_gives_the_newest_report_or_one_attempt_s() -> None:
    script = Script(httpx.Response(200, json=EXAMPLE))
    with client_of(script) as client:
        assert client.fine_tuning.jobs.report(JOB).bound.by == EXAMPLE["bound"]["by"]
        client.fine_tuning.jobs.report(JOB, attempt=2)
    asked = [str(request.url) for request in script.requests]
    base = f"http://server.test/v1/fine_tuning/jobs/{JOB}/report"
    assert asked == [base, f"{base}?attempt=2"]


def test_a_missing_report_is_an_error_with_a_code() -> None:
    error = {"message": "job has no report yet", "type": "invalid_request_error"}
    body = {"error": {**error, "code": "no_report", "hint": "ask again"}}
    with (
        client_of(Script(httpx.Response(404, json=body))) as client,
        pytest.raises(NotFoundError) as caught,
    ):
        client.fine_tuning.jobs.report(JOB)
    assert (caught.value.code, caught.value.hint) == ("no_report", "ask again")


def test_fields_of_a_newer_server_do_no_harm() -> None:
    newer = EXAMPLE | {"bound": {"by": "startup", "text": "t", "novelty": 1}, "novelty": 2}
    with client_of(Script(httpx.Response(200, json=newer))) as client:
        assert client.fine_tuning.jobs.report(JOB).bound.text == "t"


def test_a_report_fits_a_screen_of_80_columns() -> None:
    lines = shown(JobReport.model_validate(EXAMPLE))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 40
    text = "\n".join(lines)
    assert JOB in lines[0]
    for name, seconds in EXAMPLE["phases"].items():
        if seconds >= EXAMPLE["wall_seconds"] / 1000:
            assert any(line.startswith(name) for line in lines), name
    for word in ("steps", "tokens/s", "padding", "MFU", "peak memory", "bound by", "advice"):
        assert word in text
    assert EXAMPLE["advice"]["text"].split()[0] in text


def test_a_reinforcement_run_shows_its_rollouts() -> None:
    lines = shown(JobReport.model_validate(REINFORCEMENT))
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 45
    text = " ".join(" ".join(lines).split())
    assert "completions 12,800, mean length 320 tokens, longest 512; 8.0% truncated" in text
    assert "groups 19.0% with equal rewards (advantage 0)" in text
    assert "generation 16,650 tokens/s while generating, 10,827 overall" in text
    assert "; 51,200 decode steps (50,300 by CUDA graphs)" in text
    assert "idle 1.1% of the step time: waiting, logging, trainer loop" in text
    assert "engine native; merged weights; shared prompts, 1.79 x fewer tokens" in text


def test_the_report_shows_how_long_the_job_was_queued() -> None:
    report = JobReport.model_validate(EXAMPLE | {"queued_seconds": 417.2})
    [line] = [line for line in shown(report) if line.startswith("queued")]
    assert line.split(maxsplit=1)[1] == "417 s"


def test_small_phases_share_one_line() -> None:
    phases = {"claim": 0.001, "download": 0.002, "forward": 9.997}
    report = JobReport.model_validate(EXAMPLE | {"phases": phases, "wall_seconds": 10.0})
    lines = shown(report)
    assert any(line.startswith("2 more") for line in lines)
    assert not any(line.startswith("claim") for line in lines)


def test_the_report_of_a_job_just_claimed_can_be_shown() -> None:
    bare = JobReport.model_validate(
        {
            "job_id": JOB, "live": True, "updated_at": 1, "attempt": 1, "started_at": 0.0,
            "wall_seconds": 0.0, "phases": {}, "bound": {"by": "unknown", "text": "nothing yet"},
            "saturation": {"state": "not_measured", "text": "not measured"},
            "advice": {"rule": "none", "text": "nothing is known yet"},
        }
    )  # fmt: skip
    assert "running" in shown(bare)[0]


def test_square_brackets_are_not_markup_and_layers_are_summed() -> None:
    report = JobReport.model_validate(EXAMPLE)
    report.advice.text = "[bold]as it is[/bold]"
    report.layers = LayerMemory(
        planned=["keep", "recompute", "recompute"], recomputes=[0, 40, 40], offloads=[0, 0, 0]
    )
    text = "\n".join(shown(report))
    assert "[bold]as it is[/bold]" in text
    assert "plan: 1 keep, 2 recompute; 80 recomputes; 0 offloads" in text


@pytest.mark.parametrize(
    ("outcome", "live", "word"),
    [("failed", False, "failed"), (None, True, "running"), (None, False, "worker lost")],
)
def test_the_first_line_shows_the_state(outcome: str | None, live: bool, word: str) -> None:
    report = JobReport.model_validate(EXAMPLE | {"outcome": outcome, "live": live})
    assert word in shown(report)[0]


def test_the_command_prints_a_table_or_the_api_s_json(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    server.answers[f"GET /v1/fine_tuning/jobs/{JOB}/report"] = EXAMPLE
    done = tunesmith("jobs", "report", JOB)
    assert (done.exit_code, "bound by" in done.stdout) == (0, True), done.output
    done = tunesmith("jobs", "report", JOB, "--attempt", "1", "--json")
    assert json.loads(done.stdout) == EXAMPLE

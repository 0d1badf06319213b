"""`jobs.evaluation` of the SDK, and `tunesmith jobs evaluation` on a screen of 80 columns."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import httpx
from rich.console import Console

from tunesmith._cli.evaluation import render
from tunesmith_schema import JobEvaluation

from .conftest import Tunesmith
from .fakes import Script, client_of
from .local_server import LocalServer

JOB = "ftjob-1"

EVALUATION: dict[str, Any] = {
    "job_id": JOB,
    "attempt": 1,
    "verdict": "better by 0.31 ± 0.05 nats on 80 rows",
    "outcome": "better",
    "metric": "loss",
    "on": "validation_file",
    "rows": 80,
    "rows_available": 90,
    "base": 1.5,
    "tuned": 1.19,
    "file": "valid.jsonl",
    "models": [
        {"model": "tuned", "step": 9, "loss": 1.19, "perplexity": 3.29, "token_accuracy": 0.71},
        {"model": "base", "loss": None, "perplexity": None, "token_accuracy": 0.2},
    ],
    "comparisons": [],
    "answers": [
        {"row": 3, "prompt": "[b]2 + 2?", "expected": "4", "answers": {"tuned": "4", "base": "5"}}
    ],
    "left_out": ["10 of 90 rows"],
}


def test_the_sdk_gives_the_evaluation_of_a_job() -> None:
    script = Script(httpx.Response(200, json=EVALUATION))
    with client_of(script) as client:
        found = client.fine_tuning.jobs.evaluation(JOB)
    assert (found.verdict, found.models[0].loss) == (EVALUATION["verdict"], 1.19)
    [request] = script.requests
    assert str(request.url) == f"http://server.test/v1/fine_tuning/jobs/{JOB}/evaluation"


def test_an_evaluation_fits_a_screen_of_80_columns() -> None:
    out = StringIO()
    console = Console(file=out, width=80, markup=False, highlight=False, force_terminal=False)
    console.print(render(JobEvaluation.model_validate(EVALUATION)))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[0] == EVALUATION["verdict"]
    words = [line.split() for line in lines]
    assert ["tuned", "9", "1.19", "3.29", "0.71"] in words
    assert ["base", "not", "finite", "not", "finite", "0.2"] in words
    assert "left out: 10 of 90 rows" in lines
    assert ["row", "3", "[b]2", "+", "2?"] in words
    assert words[-2:] == [["tuned", "4"], ["base", "5"]]


def test_the_command_prints_a_table_or_the_api_s_json(
    tunesmith: Tunesmith, server: LocalServer
) -> None:
    server.answers[f"GET /v1/fine_tuning/jobs/{JOB}/evaluation"] = EVALUATION
    done = tunesmith("jobs", "evaluation", JOB)
    assert (done.exit_code, "token accuracy" in done.stdout) == (0, True), done.output
    done = tunesmith("jobs", "evaluation", JOB, "--json")
    assert json.loads(done.stdout) == EVALUATION

"""The API against its own OpenAPI document: schemathesis sends what a schema allows and forbids.

No response may be an unhandled error or differ from the document.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tunesmith_server.core.database import Database
from tunesmith_server.core.settings import Settings

from ..cpu_time import slowness
from .actors import FakeWakeUps, Server, new_key, serving
from .live import listening

ENOUGH_CASES = 1000
MOST_SECONDS = 320
"""Largest time limit of fuzzing."""
PHASES = {"postgresql": "examples,coverage,fuzzing", "sqlite": "examples,coverage"}
"""PostgreSQL refuses more values than SQLite, so random cases go there."""
CONFIG = """
hooks = "{hooks}"

[checks]
# The default and 413, the status of a body of megabytes.
negative_data_rejection.expected-statuses = [
    "400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx",
]

[parameters]
file_id = "{file}"
job_id = "{job}"
adapter_id = "{adapter}"
name = "adapter_config.json"

[[operations]]
include-path = "/readyz"
checks.not_a_server_error.enabled = false  # 503 without a worker, as documented

[[operations]]
include-path = "/v1/fine_tuning/events"
enabled = false  # the stream of all jobs has no end

[[operations]]
include-name = ["POST /v1/chat/completions", "POST /v1/completions"]
checks.not_a_server_error.enabled = false  # 503 without an inference server, as documented

[[operations]]
include-path-regex = "/v1/models/.*/(uses|tokenizer)"
checks.unsupported_method.enabled = false  # names have slashes: DELETE /v1/models/{{model}} answers

[[operations]]
include-name = ["POST /v1/files", "POST /v1/uploads/{{upload_id}}/parts"]
checks.negative_data_rejection.enabled = false  # a part of a form is text: null is sent as "null"
"""

HOOKS = """
import schemathesis

@schemathesis.hook
def filter_case(context, case):
    only = str((case.query or {}).get("validate_only")).lower() == "true"
    return not (only and case.meta and case.meta.generation.mode.is_negative)
"""
"""Leaves out invalid jobs that are only validated: the answer is 200 and names the problems."""


@pytest.fixture
def config(settings: Settings, wake_ups: FakeWakeUps, tmp_path: Path) -> Path:
    """Configuration with ids that exist: a file, a succeeded job, its adapter."""
    with serving(settings, wake_ups) as server:
        ids = _made(server)
    hooks = tmp_path / "hooks.py"
    hooks.write_text(HOOKS)
    path = tmp_path / "schemathesis.toml"
    path.write_text(CONFIG.format(hooks=hooks, **ids))
    return path


def _made(server: Server) -> dict[str, str]:
    file_id = server.good_file()
    job_id = server.create_job(file_id, metadata={"team": "x"})
    server.worker.succeed(server.worker.claim())
    server.add_resume_points(job_id, 5)  # so that forks are possible
    return {"file": file_id, "job": job_id, "adapter": server.job(job_id)["adapter_id"]}


@pytest.mark.timeout(600)
def test_every_answer_is_as_documented(
    settings: Settings, wake_ups: FakeWakeUps, config: Path
) -> None:
    from tunesmith_server.app import create_app

    database = Database(settings.database_url)
    key = new_key(database, "schemathesis")
    phases = PHASES[database.engine.dialect.name]
    database.dispose()
    with listening(create_app(settings)) as url:
        # The first request builds the document. Schemathesis would wait for it for 10 s only.
        httpx2.get(f"{url}/openapi.json", timeout=60).raise_for_status()
        seconds = min(40 * max(1.0, slowness()), MOST_SECONDS / 2)
        said, tried = _schemathesis(url, key, config, phases, seconds)
        if tried < ENOUGH_CASES:  # other programs use the cores: estimate the time that is needed
            seconds = min(2 * seconds * ENOUGH_CASES / max(tried, 1), MOST_SECONDS)
            said, tried = _schemathesis(url, key, config, phases, seconds)
    assert tried >= ENOUGH_CASES, said[-2000:]


def _schemathesis(url: str, key: str, config: Path, phases: str, seconds: float) -> tuple[str, int]:
    """Return the output and the number of requests. Fuzzing ends after `seconds`."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config)),
            *("run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {key}"),
            # A valid body may still name a file that does not exist.
            *("--exclude-checks", "positive_data_acceptance"),
            *("--phases", phases, "--max-examples", "20"),
            *("--max-time", f"{seconds:.0f}", "--seed", "1", "--generation-deterministic"),
            *("--no-color", "--warnings", "off"),
        ],
        cwd=config.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    tried = re.search(r"(\d+) generated", done.stdout)
    return done.stdout, int(tried[1]) if tried else 0

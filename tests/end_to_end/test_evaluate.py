"""Evaluation on demand on a real service: `tunesmith eval`, and `kill -9` of its worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_model import make_tiny_model
from tunesmith_schema import EvaluationStatus

from .service import QUICK, Service, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ROWS = [{"question": f"What is {n} plus 1?", "answer": str(n + 1)} for n in range(20)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("evaluate")
    make_tiny_model(folder / "models" / "tiny")
    running = Service(folder / "data", folder / "models", **QUICK, TUNESMITH_WARM_TRAINER="false")
    running.start()
    yield running
    running.close()


def rows_file(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def test_a_killed_worker_s_evaluation_runs_again_and_is_stored_once(
    service: Service, tmp_path: Path
) -> None:
    client = service.client()
    made = client.evaluations.create(model="tiny", file=rows_file(tmp_path))
    path = client.evaluations

    def evaluating() -> list[int]:
        return service.processes("tunesmith_worker.trainer.evaluation")

    until(lambda: bool(evaluating()), 60)
    [process] = evaluating()
    assert path.retrieve(made.id).status is EvaluationStatus.RUNNING
    for pid in (service.worker_child(), service.worker_main()):
        os.kill(pid, signal.SIGKILL)
    until(lambda: process not in evaluating(), 10)  # the process ends with its worker
    ended = path.wait(made.id, timeout=120)
    assert ended.result is not None
    assert (ended.result.rows, ended.result.models[0].model) == (len(ROWS), "model")
    assert [item.id for item in path.list()] == [made.id]
    assert not evaluating()


def test_a_cancelled_evaluation_s_process_ends(service: Service, tmp_path: Path) -> None:
    client = service.client()
    made = client.evaluations.create(model="tiny", file=rows_file(tmp_path))
    until(lambda: bool(service.processes("tunesmith_worker.trainer.evaluation")), 60)
    assert client.evaluations.cancel(made.id).status is EvaluationStatus.CANCELLED
    until(lambda: not service.processes("tunesmith_worker.trainer.evaluation"), 5)
    assert client.evaluations.retrieve(made.id).result is None


def test_the_command_waits_and_shows_the_result(service: Service, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tunesmith.cli", "--base-url", service.url),
            *("--api-key", service.api_key, "eval", "tiny", "--data", str(rows_file(tmp_path))),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "not compared: loss" in done.stdout
    assert "token accuracy" in done.stdout
    assert "eval-" in done.stderr

"""The running service: cancelling, refusing, starting fast."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import tunesmith

from .service import LONG, SHORT, Service, until

pytestmark = pytest.mark.slow


def test_a_job_is_cancelled_while_its_trainer_still_imports(
    client: tunesmith.Client, rows: Path, service: Service
) -> None:
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=LONG)
    until(lambda: service.trainers())
    asked = time.monotonic()
    job.cancel()
    until(lambda: job.refresh().status == "cancelled", 10)
    assert time.monotonic() - asked < 5


def test_a_queued_job_is_cancelled_at_once_and_never_starts(
    client: tunesmith.Client, rows: Path
) -> None:
    jobs = client.fine_tuning.jobs
    first = jobs.create(model="tiny", training_file=str(rows), recipe=LONG)
    second = jobs.create(model="tiny", training_file=first.training_file, recipe=SHORT)
    until(lambda: first.refresh().state == "running")
    assert second.cancel().status == "cancelled"
    first.cancel()
    with pytest.raises(tunesmith.JobCancelledError):
        first.wait(timeout=20)
    assert second.refresh().attempt == 0


def test_the_first_step_comes_soon_after_the_request(client: tunesmith.Client, rows: Path) -> None:
    """The bar is 9 s on an idle machine; this trips on twice that."""
    file = client.files.create(file=rows)
    client.files.wait_for_processing(file.id, timeout=30)
    asked = time.time()
    job = client.fine_tuning.jobs.create(model="tiny", training_file=file.id, recipe=SHORT)
    first = next(event for event in job.stream() if event.kind == "metrics")
    assert first.data["step"] == 1
    assert time.time() - asked < 18
    job.wait(timeout=60)
    seconds = {e.data["phase"]: e.data["seconds"] for e in job.stream() if e.kind == "phase"}
    assert {"claim", "spawn", "import", "load"} <= seconds.keys()


def test_a_bad_row_is_named_before_a_job_is_made(client: tunesmith.Client, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "a", "answer": "b"}\n{"question": "a"\n')
    file = client.files.create(file=broken)
    file = client.files.wait_for_processing(file.id, timeout=30)
    assert file.status == "error"
    assert file.validation is not None
    assert file.validation.problems[0].row == 2
    with pytest.raises(tunesmith.BadRequestError, match="row 2") as caught:
        client.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    assert caught.value.param == "training_file"


def test_a_run_that_cannot_work_fails_with_a_code_and_a_hint(
    client: tunesmith.Client, rows: Path
) -> None:
    recipe = SHORT | {"max_seq_length": 8}
    job = client.fine_tuning.jobs.create(model="tiny", training_file=str(rows), recipe=recipe)
    with pytest.raises(tunesmith.JobFailedError) as caught:
        job.wait(timeout=60)
    assert caught.value.code == "no_trainable_tokens"
    assert caught.value.hint


def test_a_second_serve_on_the_same_directory_is_refused(service: Service) -> None:
    import subprocess
    import sys

    again = subprocess.run(
        [
            *(sys.executable, "-m", "tunesmith_server", "serve"),
            *("--data-dir", str(service.data_dir), "--port", "0"),
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert again.returncode == 1
    assert f"pid {service.pid}" in again.stderr

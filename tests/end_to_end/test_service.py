"""The running service: what it refuses, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunesmith

from .service import SHORT, Service

pytestmark = pytest.mark.slow


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

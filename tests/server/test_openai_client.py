"""The unmodified `openai` package, with strict response validation, against the app over HTTP."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.fine_tuning.job_create_params import Method
from openai.types.graders import StringCheckGraderParam

from .actors import ROWS, Server
from .callers import event, metrics
from .live import listening

METHOD: Method = {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}}


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with listening(server.app) as url:
        yield f"{url}/v1"


@pytest.fixture
def client(server: Server, url: str) -> Iterator[OpenAI]:
    key = server.user.headers["authorization"].removeprefix("Bearer ")
    strict = OpenAI(
        base_url=url, api_key=key, max_retries=0, timeout=20, _strict_response_validation=True
    )
    with strict:
        yield strict


def test_files(client: OpenAI, server: Server) -> None:
    file = client.files.create(
        file=("rows.jsonl", ROWS),
        purpose="fine-tune",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert (file.bytes, file.filename, file.status) == (len(ROWS), "rows.jsonl", "uploaded")
    assert file.expires_at == pytest.approx(file.created_at + 3600, abs=1)
    server.validate(file.id)
    assert client.files.wait_for_processing(file.id).status == "processed"
    other = client.files.create(file=ROWS, purpose="assistants")
    assert [item.id for item in client.files.list()] == [other.id, file.id]
    assert [item.id for item in client.files.list(order="asc", limit=1)] == [file.id, other.id]
    assert [item.id for item in client.files.list(purpose="fine-tune")] == [file.id]
    assert client.files.content(file.id).read() == ROWS
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_the_life_of_a_job(client: OpenAI, server: Server) -> None:
    file_id = server.good_file()
    job = client.fine_tuning.jobs.create(
        model="tiny-llama",
        training_file=file_id,
        method=METHOD,
        suffix="mine",
        seed=3,
        metadata={"team": "red"},
        extra_body={"recipe": {"lora": {"r": 4}, "max_seq_length": 64}},
        extra_headers={"Idempotency-Key": "k"},
    )
    assert (job.status, job.seed, job.object) == ("queued", 3, "fine_tuning.job")
    assert job.hyperparameters.n_epochs == 2
    assert job.recipe["lora"]["r"] == 4  # type: ignore[attr-defined]  # our extra field
    assert job._request_id

    claim = server.worker.claim()
    stored = server.worker.store(claim, {"adapter_model.safetensors": b"x"})
    saved = {"step": 2, "metrics": {"train_loss": 1.0}}
    server.worker.report(
        claim,
        events=[
            *(metrics(number, number, train_loss=1 / number) for number in range(1, 26)),
            event(26, kind="checkpoint", data=saved, files=stored),
        ],
    )
    assert client.fine_tuning.jobs.retrieve(job.id).status == "running"
    server.worker.succeed(claim)
    done = client.fine_tuning.jobs.retrieve(job.id)
    assert done.status == "succeeded"
    assert done.trained_tokens == 30
    assert done.fine_tuned_model
    assert client.models.retrieve(done.fine_tuned_model).owned_by == "tunesmith"

    told = list(client.fine_tuning.jobs.list_events(job.id, limit=7))
    assert [item.message for item in told] == server.messages(job.id)[::-1]
    assert len({item.id for item in told}) == len(told) > 7
    [checkpoint] = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert (checkpoint.step_number, checkpoint.metrics.train_loss) == (2, 1.0)
    assert client.models.retrieve(checkpoint.fine_tuned_model_checkpoint).id


def test_reinforcement(client: OpenAI, server: Server, url: str) -> None:
    file_id = server.upload()
    server.validate(file_id, usable_for=["reinforcement"])
    check: StringCheckGraderParam = {
        "type": "string_check",
        "name": "exact",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
        "operation": "eq",
    }
    job = client.fine_tuning.jobs.create(
        model="tiny-llama",
        training_file=file_id,
        method={
            "type": "reinforcement",
            "reinforcement": {
                "grader": check,
                "hyperparameters": {
                    "batch_size": 4,
                    "compute_multiplier": 0.5,
                    "eval_interval": 5,
                    "eval_samples": 2,
                    "reasoning_effort": "default",
                },
            },
        },
        extra_body={"recipe": {"grpo": {"prompts_per_step": 4}}},
    )
    assert job.hyperparameters.batch_size == 4
    assert job.method
    assert job.method.reinforcement
    assert job.method.reinforcement.grader.model_dump() == check
    assert job.method.reinforcement.hyperparameters
    assert job.method.reinforcement.hyperparameters.compute_multiplier == 0.5

    # The package's types have no map of graders, but the service has.
    multi: Any = {
        "type": "multi",
        "name": "both",
        "graders": {"exact": check, "short": {"type": "length", "target": 8, "limit": 64}},
        "calculate_output": "0.8 * exact + 0.2 * short",
    }
    with OpenAI(base_url=url, api_key=client.api_key, max_retries=0) as loose:
        made = loose.fine_tuning.jobs.create(
            model="tiny-llama",
            training_file=file_id,
            method={"type": "reinforcement", "reinforcement": {"grader": multi}},
        )
        again = loose.fine_tuning.jobs.retrieve(made.id)
    assert again.method
    assert again.method.reinforcement
    shown: Any = again.method.reinforcement.grader
    assert shown.graders.keys() == {"exact", "short"}
    assert shown.calculate_output == multi["calculate_output"]

    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.jobs.create(model="tiny-llama", training_file=file_id, method=METHOD)
    assert (refused.value.param, refused.value.code) == ("training_file", "invalid_training_file")
    bad: Any = {"type": "reinforcement", "reinforcement": {"grader": {**check, "operation": "~"}}}
    with pytest.raises(openai.BadRequestError, match="operation"):
        client.fine_tuning.jobs.create(model="tiny-llama", training_file=file_id, method=bad)


def test_a_failed_and_a_cancelled_job(client: OpenAI, server: Server) -> None:
    file_id = server.upload()
    failed = client.fine_tuning.jobs.create(model="tiny-llama", training_file=file_id)
    assert failed.status == "validating_files"
    server.validate(file_id, ok=False)
    failed = client.fine_tuning.jobs.retrieve(failed.id)
    assert failed.status == "failed"
    assert failed.error
    assert failed.error.param == "training_file"

    job = client.fine_tuning.jobs.create(model="tiny-llama", training_file=server.good_file())
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="already failed"):
        client.fine_tuning.jobs.cancel(failed.id)


def test_a_job_is_paused_and_resumed(client: OpenAI, server: Server) -> None:
    jobs, worker = client.fine_tuning.jobs, server.worker
    job_id = server.create_job(server.good_file())
    assert jobs.pause(job_id).status == jobs.resume(job_id).status == "queued"
    claim = worker.claim()
    paused = jobs.pause(job_id)
    assert (paused.status, paused.state) == ("running", "pausing")  # type: ignore[attr-defined]  # our extra field
    assert worker.report(claim)["control"] == "pause"
    worker.report(claim, outcome={"state": "released"})
    paused = jobs.retrieve(job_id)
    assert (paused.status, paused.state) == ("queued", "paused")  # type: ignore[attr-defined]  # our extra field
    assert jobs.resume(job_id).id == job_id
    worker.succeed(worker.claim())
    with pytest.raises(openai.BadRequestError, match="already succeeded") as refused:
        jobs.resume(job_id)
    assert refused.value.code == "not_resumable"
    with pytest.raises(openai.BadRequestError):
        jobs.pause(job_id)


def test_jobs_are_paged_and_filtered(client: OpenAI, server: Server) -> None:
    file_id = server.good_file()
    made = [server.create_job(file_id, metadata={"odd": str(i % 2)}) for i in range(5)]
    assert [job.id for job in client.fine_tuning.jobs.list(limit=2)] == made[::-1]
    odd = client.fine_tuning.jobs.list(metadata={"odd": "1"})
    assert [job.id for job in odd] == [made[3], made[1]]


def test_models(client: OpenAI, server: Server) -> None:
    server.create_job(server.good_file(), model="org/base")
    server.worker.succeed(server.worker.claim())
    models = list(client.models.list())
    assert [model.owned_by for model in models] == ["base", "tunesmith"]
    assert client.models.retrieve("tiny-llama").id == "tiny-llama"
    assert client.models.delete(models[1].id).deleted
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("a/b")


def test_errors_have_their_classes_and_fields(client: OpenAI, server: Server, url: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.fine_tuning.jobs.create(model="tiny-llama", training_file="file-none")
    assert (refused.value.param, refused.value.code) == ("training_file", "not_found")
    assert refused.value.type == "invalid_request_error"
    assert refused.value.request_id
    assert refused.value.request_id.startswith("req-")
    with pytest.raises(openai.NotFoundError) as missing:
        client.fine_tuning.jobs.retrieve("ftjob-none")
    assert missing.value.code == "not_found"
    file_id = server.good_file()
    server.create_job(file_id)
    with pytest.raises(openai.ConflictError) as busy:
        client.files.delete(file_id)
    assert busy.value.code == "file_in_use"
    with (
        OpenAI(base_url=url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.models.list()
    assert unknown.value.code == "invalid_api_key"


def test_a_permanent_conflict_is_not_retried(client: OpenAI, server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    patient = client.with_options(max_retries=5)
    with pytest.raises(openai.ConflictError) as busy:
        patient.files.delete(file_id)
    assert busy.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_file_in_parts(client: OpenAI, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS * 1000)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    upload = client.uploads.upload_file_chunked(
        file=path, mime_type="text/jsonl", purpose="fine-tune", part_size=20_000, md5=md5
    )
    assert (upload.status, upload.object) == ("completed", "upload")
    assert upload.file
    assert client.files.content(upload.file.id).read() == path.read_bytes()
    server.validate(upload.file.id)
    in_memory = client.uploads.upload_file_chunked(
        file=ROWS, filename="a", bytes=len(ROWS), mime_type="text/jsonl", purpose="assistants"
    )
    assert in_memory.file
    assert in_memory.file.status == "processed"


def test_an_upload_step_by_step(client: OpenAI) -> None:
    upload = client.uploads.create(
        bytes=4,
        filename="a.jsonl",
        mime_type="text/jsonl",
        purpose="fine-tune",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    part = client.uploads.parts.create(upload.id, data=b"rows")
    assert (part.object, part.upload_id) == ("upload.part", upload.id)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.uploads.complete(upload.id, part_ids=[part.id, part.id])
    assert wrong.value.code == "upload_mismatch"
    assert client.uploads.cancel(upload.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        client.uploads.parts.create(upload.id, data=b"rows")

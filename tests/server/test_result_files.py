"""OpenAI's result file: the metrics of an ended job as CSV, read by the real client."""

from __future__ import annotations

import csv
import io

import openai
import pytest

from tunesmith import Client

from .actors import Server
from .callers import metrics
from .live import listening

HEADER = ["step", "train_loss", "train_accuracy", "valid_loss", "valid_mean_token_accuracy"]


def test_the_openai_client_downloads_the_metrics(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    server.worker.report(
        claim,
        events=[
            metrics(1, 1, train_loss=2.5, train_mean_token_accuracy=0.5, learning_rate=1.0),
            metrics(2, 2, train_loss=None, train_mean_token_accuracy=0.25),
            metrics(3, 2, valid_loss=2.25, valid_mean_token_accuracy=0.75),
        ],
    )
    assert server.job(job_id)["result_files"] == []
    server.worker.succeed(claim)
    key = str(server.user.headers["authorization"]).removeprefix("Bearer ")
    with listening(server.app) as url, openai.OpenAI(base_url=f"{url}/v1", api_key=key) as client:
        [file_id] = client.fine_tuning.jobs.retrieve(job_id).result_files
        content = client.files.content(file_id).content
        file = client.files.retrieve(file_id)
        with pytest.raises(openai.BadRequestError, match="has the metrics of job"):
            client.files.delete(file_id)
        with Client(base_url=f"{url}/v1", api_key=key) as own:
            assert own.files.content(file_id) == content
    rows = list(csv.reader(io.StringIO(content.decode())))
    assert rows == [
        HEADER, ["1", "2.5", "0.5", "", ""], ["2", "nan", "0.25", "2.25", "0.75"],
    ]  # fmt: skip
    assert (file.purpose, file.bytes) == ("fine-tune-results", len(content))
    assert file.filename == f"{job_id}-metrics.csv"
    assert server.user.json("/v1/fine_tuning/jobs")["data"][0]["result_files"] == [file_id]


def test_a_reinforcement_job_has_its_rewards(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, method_name="reinforcement")
    claim = server.worker.claim()
    server.worker.report(claim, events=[metrics(1, 1, train_loss=0.1, reward=0.5)])
    server.worker.succeed(claim)
    [file_id] = server.job(job_id)["result_files"]
    lines = server.user.get(f"/v1/files/{file_id}/content").text.splitlines()
    assert lines[0].split(",") == [*HEADER, "train_mean_reward", "valid_mean_reward"]
    assert lines[1] == "1,0.1,,,,0.5,"


def test_a_job_without_metrics_or_a_deleted_one_has_no_file(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    assert server.ask(job_id, "cancel")["result_files"] == []
    unknown = f"/v1/files/file-metrics-{job_id.removeprefix('ftjob-')}"
    assert server.user.get(unknown).status_code == 404
    assert server.user.get(f"{unknown}/content").status_code == 404

"""Lists are summaries, and a page ends at a number of bytes."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI
from sqlalchemy import insert

from tunesmith import Client
from tunesmith_schema import Job, JobState, Page, Recipe
from tunesmith_server.models import AdapterRow, EventRow, JobRow
from tunesmith_server.services.pages import PAGE_BYTES

from .actors import Server
from .callers import event, metrics
from .live import listening
from .test_lists import pages

JOBS = "/v1/fine_tuning/jobs"
GRADER = {
    "type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.answer}}",
    "operation": "eq",
}  # fmt: skip


def reinforcement(**grader: Any) -> dict[str, Any]:
    return {"type": "reinforcement", "reinforcement": {"grader": {**GRADER, **grader}}}


def usable_file(server: Server) -> str:
    file_id = server.upload()
    server.validate(file_id, usable_for=["supervised", "reinforcement"], prompt_format="messages")
    return file_id


def copies(server: Server, job_id: str, count: int, **columns: Any) -> list[str]:
    """Insert copies of a job with other columns; return their ids, oldest first."""
    names = [column.key for column in JobRow.__mapper__.column_attrs]
    with server.database.write.begin() as session:
        job = session.get_one(JobRow, job_id)
        common = {name: getattr(job, name) for name in names} | columns
        rows = [
            common | {"id": f"ftjob-{n:024x}", "created_at": 1e9 + n, "retry_of": None}
            for n in range(count)
        ]
        session.execute(insert(JobRow), rows)
    return [row["id"] for row in rows]


NOT_LISTED = dict.fromkeys(("queue_position", "waiting_because", "estimated_start"))
"""Fields that are null in a list."""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="supervised"),
        pytest.param({"hyperparameters": {"n_epochs": 2}}, id="hyperparameters"),
        pytest.param({"method": {"type": "supervised"}}, id="method"),
        pytest.param({"method": reinforcement()}, id="reinforcement"),
        pytest.param(
            {"recipe": {"lora": {"r": 4}, "add_tokens": ["<a>"]}, "metadata": {"a": "b"},
             "suffix": "s", "seed": 3},
            id="all fields",
        ),
    ],
)  # fmt: skip
def test_a_list_shows_a_job_as_it_is(server: Server, body: dict[str, Any]) -> None:
    job_id = server.create_job(usable_file(server), **body)
    [listed] = server.user.json(JOBS)["data"]
    assert listed == server.job(job_id) | NOT_LISTED
    assert set(listed) == set(Job.model_fields), "no field is missing"


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.SUCCEEDED, JobState.PAUSING])
def test_a_list_shows_every_state_as_it_is(server: Server, state: JobState, job_in: Any) -> None:
    job_id = job_in(state)
    [listed] = server.user.json(JOBS)["data"]
    assert listed == server.job(job_id) | NOT_LISTED


def test_large_documents_are_left_out_of_a_list_by_name(server: Server) -> None:
    file_id = usable_file(server)
    tokens = [f"<{n:060}>" for n in range(500)]
    first = server.create_job(file_id, recipe={"add_tokens": tokens, "max_steps": 7})
    second = server.create_job(file_id, method=reinforcement(reference="x" * 90_000))
    reply = server.user.get(JOBS)
    listed = {job["id"]: job for job in reply.json()["data"]}
    assert len(reply.content) < 10_000
    assert (listed[first]["omitted"], listed[second]["omitted"]) == (["recipe"], ["method"])
    assert server.job(first)["recipe"]["add_tokens"] == tokens
    assert server.job(first)["omitted"] == []
    assert Page[Job].model_validate(reply.json()).data[1].recipe == Recipe()
    assert listed[second]["method"] == {"type": "reinforcement"}
    assert listed[second]["hyperparameters"] == server.job(second)["hyperparameters"]


def test_a_large_job_of_an_older_version_costs_a_list_nothing(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    recipe = Recipe().model_dump(mode="json")
    recipe["lora"] = {"target_modules": ["x" * 4_000_000]}
    copies(server, job_id, 20, recipe=recipe)
    reply = server.user.get(JOBS, params={"limit": 1000})
    assert (len(reply.json()["data"]), len(reply.content) < 60_000) == (21, True)


def test_a_page_of_jobs_ends_at_a_number_of_bytes(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    large = {f"{n:064}": "\u4e2d" * 512 for n in range(16)}
    made = copies(server, job_id, 130, labels=large)
    reply = server.user.get(JOBS, params={"limit": 1000})
    assert reply.json()["has_more"]
    assert PAGE_BYTES / 2 < len(reply.content) <= PAGE_BYTES + 200
    assert pages(server, JOBS, limit=1000) == [job_id, *reversed(made)]
    assert pages(server, JOBS, limit=1000, order="asc") == [*made, job_id]


@pytest.mark.parametrize("count", [49, 50, 51, 100, 120])
@pytest.mark.parametrize("limit", [49, 50, 51, 100, 1000])
def test_pages_join_at_the_seams_of_their_chunks(server: Server, count: int, limit: int) -> None:
    job_id = server.create_job(server.good_file())
    copies(server, job_id, count - 1)
    assert len(set(pages(server, JOBS, limit=limit))) == count
    claim = server.worker.claim()
    batch = [metrics(number, number, train_loss=1.0) for number in range(1, count + 1)]
    server.worker.report(claim, events=batch)
    path = f"{JOBS}/{claim['job_id']}"
    steps = pages(server, f"{path}/metrics", limit=limit, order="asc")
    assert steps == [str(number) for number in range(1, count + 1)]
    assert len(pages(server, f"{path}/events", limit=limit)) >= count


def test_a_page_of_events_ends_at_a_number_of_bytes(server: Server) -> None:
    claim_job = server.create_job(server.good_file())
    with server.database.write.begin() as session:
        rows = [
            {"job_id": claim_job, "seq": 1000 + n, "created_at": 1.0, "attempt": 1,
             "kind": "message", "level": "info", "message": "m", "data": {"a": "x" * 60_000}}
            for n in range(80)
        ]  # fmt: skip
        session.execute(insert(EventRow), rows)
    path = f"{JOBS}/{claim_job}/events"
    reply = server.user.get(path, params={"limit": 1000})
    assert reply.json()["has_more"]
    assert len(reply.content) <= PAGE_BYTES + 200
    assert len(pages(server, path, limit=1000)) > 80


def test_an_item_beyond_the_bound_is_a_page_of_its_own(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    made = copies(server, job_id, 3, labels={"a": "x" * (PAGE_BYTES + 1)})
    assert pages(server, JOBS, limit=10) == [job_id, *reversed(made)]


def test_a_page_of_files_ends_at_a_number_of_bytes(server: Server) -> None:
    problems = [{"row": n, "message": "\u4e2d" * 1000} for n in range(20)]
    refused = {"supervised": {"problems": problems, "num_problems": 20}}
    made = []
    for number in range(25):
        made.append(server.upload(b"%d" % number))
        server.validate(made[-1], ok=False, problems=problems, num_problems=20, refused=refused)
    reply = server.user.get("/v1/files")
    assert reply.json()["has_more"]
    assert len(reply.content) <= PAGE_BYTES + 200
    assert pages(server, "/v1/files", limit=10_000) == made[::-1]


@pytest.fixture
def tuned(server: Server) -> list[str]:
    """Names of 1,200 tuned models, newest first."""
    job_id = server.create_job(server.good_file())
    with server.database.write.begin() as session:
        rows = [
            {"id": f"adp-{n}", "created_at": 1e9 + n // 3, "job_id": job_id, "model": f"ft:m:{n}",
             "base_model": "tiny-llama", "kind": "lora", "step": 1, "bytes": 1, "files": []}
            for n in range(1200)
        ]  # fmt: skip
        session.execute(insert(AdapterRow), rows)
    rows.sort(key=lambda row: (row["created_at"], row["id"]), reverse=True)
    return [str(row["model"]) for row in rows]


@pytest.mark.parametrize("limit", [1, 2, 500, 501, 10_000])
def test_models_are_listed_page_by_page(server: Server, tuned: list[str], limit: int) -> None:
    server.worker.hello(models=["a-model", "tiny-llama"])
    first = server.user.json("/v1/models", params={"limit": limit})
    assert len(first["data"]) == min(limit, 1202)
    if limit > 100:
        assert pages(server, "/v1/models", limit=limit) == ["a-model", "tiny-llama", *tuned]
    after = server.user.json("/v1/models", params={"limit": limit, "after": "a-model"})
    assert after["data"][0]["id"] == "tiny-llama"
    after = server.user.json("/v1/models", params={"limit": limit, "after": "tiny-llama"})
    assert after["data"][0]["id"] == tuned[0]


def test_an_unknown_model_is_no_cursor(server: Server) -> None:
    reply = server.user.get("/v1/models", params={"after": "ft:none"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after")


def test_the_openai_client_and_the_sdk_list_all_models(server: Server, tuned: list[str]) -> None:
    key = server.user.headers["authorization"].removeprefix("Bearer ")
    with listening(server.app) as url:
        openai = OpenAI(base_url=f"{url}/v1", api_key=key, _strict_response_validation=True)
        assert [model.id for model in openai.models.list()] == ["tiny-llama", *tuned]
        with Client(base_url=f"{url}/v1", api_key=key) as sdk:
            assert [model.id for model in sdk.models.list()] == ["tiny-llama", *tuned]


def test_samples_and_checkpoints_are_unchanged_by_the_bound(server: Server) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()
    for number in range(1, 4):
        files = server.worker.store(claim, {"a.safetensors": b"x" * number})
        checkpoint = event(number, kind="checkpoint", data={"step": number}, files=files)
        server.worker.report(claim, events=[checkpoint])
    path = f"{JOBS}/{claim['job_id']}/checkpoints"
    assert len(pages(server, path, limit=2)) == 3
    assert server.user.json(f"{JOBS}/{claim['job_id']}/samples")["data"] == []

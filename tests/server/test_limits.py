"""Rate limits of keys, quotas of projects, and the catalogue of base models."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tunesmith_server.api.rate_limits import RateLimits
from tunesmith_server.core.errors import TooManyRequests
from tunesmith_server.core.principal import Principal, ProjectLimits, allowed_verbs
from tunesmith_server.models import DEFAULT_PROJECT

from .actors import ROWS, Server
from .teams import caller, new_project

PROJECT = f"/v1/organization/projects/{DEFAULT_PROJECT}"
JOBS = "/v1/fine_tuning/jobs"


def principal(key_id: str = "key-1", limit: int | None = None) -> Principal:
    return Principal(
        key_id=key_id,
        role="member",
        project=ProjectLimits(project_id=DEFAULT_PROJECT),
        verbs=allowed_verbs("member", None),
        requests_per_minute=limit,
    )


def test_a_key_that_sends_too_much_waits_the_time_it_is_told() -> None:
    now = 100.0
    limits = RateLimits(30, now=lambda: now)
    for _ in range(30):
        limits.check(principal())
    with pytest.raises(TooManyRequests) as refused:
        limits.check(principal())
    assert refused.value.headers == {"retry-after": "2"}
    limits.check(principal("key-2"))
    now += 2
    limits.check(principal())
    with pytest.raises(TooManyRequests):
        limits.check(principal())
    now += 3600  # a bucket holds at most one minute's requests
    for _ in range(30):
        limits.check(principal())
    with pytest.raises(TooManyRequests):
        limits.check(principal())


def test_a_key_without_a_limit_and_a_key_with_its_own() -> None:
    limits = RateLimits(0, now=lambda: 0.0)
    for _ in range(1000):
        limits.check(principal())
    limits.check(principal("key-2", limit=1))
    with pytest.raises(TooManyRequests, match="this key may send 1 request per minute"):
        limits.check(principal("key-2", limit=1))


def test_the_route_answers_429_with_retry_after(server: Server) -> None:
    slow = caller(server, "viewer", requests_per_minute=2)
    assert [slow.get("/v1/files").status_code for _ in range(3)] == [200, 200, 429]
    refused = slow.get("/v1/files")
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert server.user.get("/v1/files").status_code == 200


def test_a_full_project_stores_nothing_and_starts_nothing(server: Server) -> None:
    admin = caller(server, "admin")
    file_id = server.good_file()
    size = server.user.json(f"/v1/files/{file_id}")["bytes"]
    assert admin.post(PROJECT, json={"max_bytes": size + 10}).json()["max_bytes"] == size + 10
    file = {"files": {"file": ("a.jsonl", ROWS)}, "data": {"purpose": "fine-tune"}}
    refused = server.user.post("/v1/files", **file)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "quota_exceeded"
    assert f"{size:,} of {size + 10:,} bytes" in refused.json()["error"]["message"]
    upload = {"bytes": 10, "filename": "a.jsonl", "mime_type": "x", "purpose": "fine-tune"}
    opened = server.user.post("/v1/uploads", json=upload)
    assert opened.status_code == 200
    for again in (
        server.user.post("/v1/uploads", json={**upload, "bytes": 1}),
        server.create_reply(file_id),
    ):
        assert again.status_code == 403
    # The upload was counted when it was opened, so it can be completed.
    path = f"/v1/uploads/{opened.json()['id']}"
    part = server.user.post(f"{path}/parts", files={"data": b"0123456789"}).json()["id"]
    assert server.user.post(f"{path}/complete", json={"part_ids": [part]}).status_code == 200
    assert server.user.delete(f"/v1/files/{file_id}").status_code == 200
    assert server.user.post("/v1/files", **file).status_code == 200
    assert admin.post(PROJECT, json={"max_bytes": None}).json()["max_bytes"] is None
    assert server.user.post("/v1/files", **file).status_code == 200


def test_concurrent_uploads_do_not_exceed_the_quota(server: Server) -> None:
    admin = caller(server, "admin")
    admin.post(PROJECT, json={"max_bytes": 50})
    upload = {"bytes": 10, "filename": "a.jsonl", "mime_type": "x", "purpose": "fine-tune"}
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: server.user.post("/v1/uploads", json=upload), range(16)))
    assert sorted(reply.status_code for reply in replies) == [200] * 5 + [403] * 11


def test_a_result_is_stored_beyond_the_quota(server: Server) -> None:
    admin = caller(server, "admin")
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    admin.post(PROJECT, json={"max_bytes": 1})
    server.worker.succeed(claim)
    assert server.job(job_id)["state"] == "succeeded"


def test_a_project_uses_only_its_base_models(server: Server) -> None:
    admin = caller(server, "admin")
    project_id = new_project(admin)
    path = f"/v1/organization/projects/{project_id}"
    elsewhere = caller(server, "member", project_id)
    assert "tiny-llama" in [model["id"] for model in elsewhere.json("/v1/models")["data"]]
    admin.post(path, json={"base_models": ["org/allowed"]})
    assert elsewhere.json("/v1/models")["data"] == []
    assert elsewhere.get("/v1/models/tiny-llama").status_code == 404
    chat = {"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}]}
    assert elsewhere.post("/v1/chat/completions", json=chat).status_code == 404
    for model in ("tiny-llama", "org/other"):
        body = {"model": model, "training_file": "file-0"}
        assert elsewhere.post(JOBS, json=body).json()["error"]["code"] == "model_not_found"
    body = {"model": "org/allowed", "training_file": "file-0"}
    assert elsewhere.post(JOBS, json=body).json()["error"]["param"] == "training_file"
    assert "tiny-llama" in [model["id"] for model in server.user.json("/v1/models")["data"]]


def test_the_catalogue_limits_all_projects(server: Server) -> None:
    server.settings.base_models = "org/a, tiny-llama"
    file_id = server.good_file()
    assert server.create_reply(file_id).status_code == 200
    assert server.create_reply(file_id, model="org/a").status_code == 200
    refused = server.create_reply(file_id, model="org/b").json()["error"]
    assert (refused["code"], refused["param"]) == ("model_not_found", "model")
    server.settings.base_models = "org/a"
    assert server.create_reply(file_id).status_code == 400

"""One credential per worker: a worker has access to what it holds, and to nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tunesmith_schema import WorkerHello
from tunesmith_server.core.settings import Settings
from tunesmith_worker.supervisor.claim_lock import ClaimRecord, report_orphans
from tunesmith_worker.supervisor.identity import WorkerIdentity
from tunesmith_worker.supervisor.server_api import FencedOut, ServerApi, ServerRefused
from tunesmith_worker.supervisor.settings import WorkerSettings

from .actors import Server
from .callers import Caller

REPORT = {"attempt": 1, "fence": 1, "worker_id": "worker-1"}


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    """A job that worker-1 holds."""
    server.create_job(server.good_file())
    return server.worker.claim()


def job_requests(claim: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """All requests that only the holder of the job may send."""
    job, fence, sha256 = f"/internal/jobs/{claim['job_id']}", {"fence": claim["fence"]}, "0" * 64
    file = f"/internal/files/{claim['training_file']['file_id']}"
    return [
        ("POST", f"{job}/report", {"json": REPORT}),
        ("PUT", f"{job}/blobs/{sha256}", {"params": fence, "content": b"x"}),
        ("GET", f"{job}/blobs/{sha256}", {"params": fence}),
        ("GET", f"{job}/resume/{sha256}", {"params": fence}),
        ("GET", f"{job}/base/config.json", {"params": fence}),
        ("GET", f"{file}/content", {}),
    ]


def send_as(server: Server, headers: dict[str, str], request: tuple[str, str, Any]) -> Any:
    method, path, options = request
    return server.anonymous.send(method, path, headers=headers, **options)


def test_another_worker_cannot_touch_a_job_that_it_does_not_hold(
    server: Server, claim: dict[str, Any]
) -> None:
    other = server.worker.credential("worker-2")
    for request in job_requests(claim):
        reply = send_as(server, other, request)
        assert reply.status_code in (401, 409), (request, reply.text)
        assert reply.json()["error"]["code"] in ("fenced_out", "invalid_api_key"), request
    report = {**REPORT, "worker_id": "worker-2"}  # nor under its own name with the job's fence
    reply = send_as(
        server, other, ("POST", f"/internal/jobs/{claim['job_id']}/report", {"json": report})
    )
    assert reply.json()["error"]["code"] == "fenced_out"
    assert server.job(claim["job_id"])["state"] == "running"


def test_the_holder_has_access_until_it_gives_the_job_back(
    server: Server, claim: dict[str, Any]
) -> None:
    mine = server.worker.credential("worker-1")
    content: tuple[str, str, dict[str, Any]] = (
        "GET",
        f"/internal/files/{claim['training_file']['file_id']}/content",
        {},
    )
    assert send_as(server, mine, content).status_code == 200
    server.worker.report(claim, outcome={"state": "released"})
    for request in [content, *job_requests(claim)[1:]]:
        assert send_as(server, mine, request).status_code == 409, request


def test_a_light_worker_reads_only_files_whose_reading_it_has_claimed(
    server: Server, claim: dict[str, Any]
) -> None:
    light = server.worker.credential("light-7", "light")
    waits, done = server.upload(), claim["training_file"]["file_id"]
    content: tuple[str, str, dict[str, Any]] = ("GET", f"/internal/files/{waits}/content", {})
    assert send_as(server, light, content).status_code == 409
    lease = server.worker.claim_reading(waits, "light-7")
    assert send_as(server, light, content).status_code == 200
    other = server.worker.credential("light-8", "light")
    assert send_as(server, other, content).status_code == 409
    assert send_as(server, light, ("GET", f"/internal/files/{done}/content", {})).status_code == 409
    body = {"json": {"worker_id": "light-7"}}
    assert send_as(server, light, ("POST", "/internal/jobs/claim", body)).status_code == 401
    result = {"result": {"ok": True, "format": "messages", "rows": 1}}
    for name in ("worker-2", "light-8"):
        credential = server.worker.credential(name)
        for verb, fields in (("claim", {}), ("renew", {}), ("give-back", {}), ("result", result)):
            named = {"worker_id": "light-7"} if verb == "claim" else lease
            request = ("POST", f"/internal/files/{waits}/reading/{verb}", {"json": named | fields})
            assert send_as(server, credential, request).status_code == 401, (name, verb)


def test_a_worker_speaks_only_for_itself(server: Server) -> None:
    hello = {"queue": "train", "host": "h", "device": "cpu", "version": "1"}
    server.worker.hello("worker-1")
    other = server.worker.credential("worker-2")
    for request in (
        ("POST", "/internal/workers/hello", {"json": {**hello, "worker_id": "worker-1"}}),
        ("POST", "/internal/jobs/claim", {"json": {"worker_id": "worker-1"}}),
        ("DELETE", "/internal/workers/worker-1", {}),
    ):
        reply = send_as(server, other, request)
        assert reply.status_code == 401, request
        assert "queue of this worker" in reply.json()["error"]["hint"]
    assert server.anonymous.json("/readyz")["status"] == "ready"


def test_the_shared_token_only_enrolls(server: Server, claim: dict[str, Any]) -> None:
    token = server.settings.worker_token.get_secret_value()
    shared = {"authorization": f"Bearer {token}"}
    for request in job_requests(claim):
        assert send_as(server, shared, request).status_code == 401, request
    enrollment = {"worker_id": "worker-1", "queue": "train", "secret_sha256": "0" * 64}
    taken = ("POST", "/internal/workers/enroll", {"json": enrollment})
    reply = send_as(server, shared, taken)
    assert reply.status_code == 409, "an id that is in use cannot be taken over"
    assert "another worker has the id" in reply.json()["error"]["message"]
    mine = server.worker.credential("worker-1")
    assert send_as(server, mine, taken).status_code == 401


def test_a_secret_of_another_worker_or_none_opens_nothing(server: Server) -> None:
    right = server.worker.credential("worker-1")["authorization"]
    for wrong in (right[:-1], right + "x", "Bearer worker-1:", "Bearer worker-1", "Bearer :", ""):
        caller = Caller(server.client, None)
        caller.headers = {"authorization": wrong}
        reply = caller.post("/internal/jobs/claim", json={"worker_id": "worker-1"})
        assert reply.status_code == 401, wrong
        assert reply.json()["error"]["code"] in ("worker_not_enrolled", "invalid_api_key")


def server_api(server: Server, settings: Settings, data: Path, queue: Any = "train") -> ServerApi:
    """The workers' client, connected to the app."""

    def forward(request: httpx.Request) -> httpx.Response:
        reply = server.client.request(
            request.method,
            request.url.raw_path.decode(),
            headers=dict(request.headers),
            content=request.read(),
        )
        return httpx.Response(reply.status_code, headers=dict(reply.headers), content=reply.content)

    chosen = WorkerSettings(data_dir=data, worker_token=settings.worker_token)
    return ServerApi(chosen, WorkerIdentity.new(queue), transport=httpx.MockTransport(forward))


def hello_of(api: ServerApi) -> WorkerHello:
    return WorkerHello(
        worker_id=api.identity.worker_id, queue=api.identity.queue, host="h", device="cpu",
        version="1", models=["tiny-llama"],
    )  # fmt: skip


def test_a_worker_enrolls_by_itself_and_again_after_the_database_was_restored(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    api = server_api(server, settings, tmp_path)
    server.create_job(server.good_file())
    api.hello(hello_of(api))
    claim = api.claim(api.identity.worker_id)
    assert claim is not None
    forget_credentials(server)
    (tmp_path / "weights").write_bytes(b"w" * 200_000)
    api.put_blob(claim.job_id, claim.fence, tmp_path / "weights")
    forget_credentials(server)
    file = claim.training_file
    api.fetch_file(file.file_id, file.sha256, tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size == file.bytes
    other = server_api(server, settings, tmp_path)
    with pytest.raises(FencedOut):
        other.put_blob(claim.job_id, claim.fence, tmp_path / "weights")
    with pytest.raises(ServerRefused, match="names"):
        other.goodbye(api.identity.worker_id)


def forget_credentials(server: Server) -> None:
    from sqlalchemy import delete

    from tunesmith_server.models import WorkerCredentialRow

    with server.database.write.begin() as session:
        session.execute(delete(WorkerCredentialRow))


def test_a_living_worker_reports_for_a_dead_one_on_its_host(
    server: Server, settings: Settings, tmp_path: Path
) -> None:
    dead, living = (server_api(server, settings, tmp_path) for _ in range(2))
    server.create_job(server.good_file())
    dead.hello(hello_of(dead))
    claim = dead.claim(dead.identity.worker_id)
    assert claim is not None
    chosen = WorkerSettings(data_dir=tmp_path / "data")
    record = ClaimRecord(chosen, dead.identity.worker_id, claim, dead.identity.secret)
    [path] = chosen.claims.glob("*.json")
    assert path.stat().st_mode & 0o077 == 0
    record.close(reported=False)
    report_orphans(chosen, living)
    job = server.job(claim.job_id)
    assert job["state"] == "queued"
    assert any("lost process" in message for message in server.messages(claim.job_id))

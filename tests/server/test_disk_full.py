"""Full disk: the request gets a retryable error, and all else keeps working."""

from __future__ import annotations

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import pytest
from httpx2 import Response
from sqlalchemy.exc import OperationalError
from starlette.datastructures import UploadFile

from tunesmith_schema import ErrorEnvelope
from tunesmith_server.core.settings import Settings
from tunesmith_server.core.storage import Storage
from tunesmith_server.services.data import files

from .actors import ROWS, FakeWakeUps, Server, serving

NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def server(settings: Settings, wake_ups: FakeWakeUps) -> Iterator[Server]:
    settings.max_file_bytes = 20_000_000
    with serving(settings, wake_ups) as running:
        yield running


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Let every write beyond `size` bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def upload(server: Server, size: int) -> Response:
    return server.user.post(
        "/v1/files",
        files={"file": ("rows.jsonl", b"x" * size)},
        data={"purpose": "fine-tune"},
    )


def assert_refused(server: Server, reply: Response) -> None:
    assert reply.status_code == 507, reply.text
    error = ErrorEnvelope.model_validate(reply.json()).error
    assert error.code == "disk_full"
    assert error.retryable
    assert error.hint
    assert "free space" in error.hint
    assert reply.headers["retry-after"]
    assert server.user.json("/v1/files")["data"] == []
    assert server.wake_ups.sent == []


def assert_unharmed(server: Server) -> None:
    """Once space is free, everything works and no partial file is left."""
    server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    janitor = server.janitor()
    janitor.sweep()
    blobs = [path for path in (server.settings.data_dir / "blobs").glob("*/*") if path.is_file()]
    assert [path.name for path in blobs if len(path.name) != 64] == []


def test_an_upload_that_the_storage_has_no_space_for(server: Server) -> None:
    with files_up_to(900_000):
        reply = upload(server, 990_000)
    assert_refused(server, reply)
    assert_unharmed(server)


def test_an_upload_that_the_spool_has_no_space_for(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(self: UploadFile, data: bytes) -> None:
        raise NO_SPACE

    with monkeypatch.context() as patched:
        patched.setattr(UploadFile, "write", full)
        reply = upload(server, 5_000_000)
    assert_refused(server, reply)
    assert_unharmed(server)


def test_a_database_that_has_no_space(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:  # Any: the service's arguments
        raise OperationalError("INSERT", {}, Exception("database or disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr(files, "create", full)
        reply = upload(server, 10)
    assert_refused(server, reply)
    assert_unharmed(server)


def test_a_checkpoint_that_finds_no_space_is_sent_again_and_the_job_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, other = (server.create_job(server.good_file()) for _ in range(2))
    claim = server.worker.claim()

    def full(self: Storage, content: IO[bytes], sha256: str) -> None:
        raise NO_SPACE

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "put", full)
        reply = server.worker.put_blob(claim, b"weights")
    assert (reply.status_code, reply.json()["error"]["code"]) == (507, "disk_full")
    assert server.job(job_id)["status"] == "running"
    server.worker.succeed(claim)
    assert server.job(job_id)["status"] == "succeeded"
    assert server.job(other)["status"] == "queued"
    assert server.user.get(f"/v1/files/{claim['training_file']['file_id']}/content").content == ROWS

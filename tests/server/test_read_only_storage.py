"""Storage that refuses writes: a code of its own, not retryable."""

from __future__ import annotations

import pytest

from tunesmith_schema import ErrorEnvelope
from tunesmith_server.core.storage import StorageUnavailable

from .actors import Server


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ("Unable to open file: Read-only file system (os error 30)", 500, "storage_read_only"),
        ("Unable to create dir: Permission denied (os error 13)", 500, "storage_read_only"),
        ("Client error with status 403 Forbidden: AccessDenied", 500, "storage_read_only"),
        ("error sending request: connection refused", 503, "unavailable"),
    ],
)
def test_a_refusal_is_told_from_an_outage(
    server: Server, monkeypatch: pytest.MonkeyPatch, said: str, status: int, code: str
) -> None:
    server.create_job(server.good_file())
    claim = server.worker.claim()

    def refuse(*args: object) -> None:
        raise StorageUnavailable(f"file:///blobs: {said}")

    monkeypatch.setattr(server.storage, "put", refuse)
    reply = server.worker.put_blob(claim, b"weights")
    error = ErrorEnvelope.model_validate(reply.json()).error
    assert (reply.status_code, error.code, error.retryable) == (status, code, status == 503)
    assert error.hint

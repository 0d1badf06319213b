"""Downloads by presigned URLs, if enabled and supported by the store."""

from __future__ import annotations

import pytest

from tunesmith_server.core.settings import Settings

from ..stacks import S3
from .actors import Server

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"presigned_seconds": 60})


@pytest.mark.parametrize("storage_url", ["s3"], indirect=True)
def test_a_download_is_sent_to_the_store(server: Server, s3: S3) -> None:
    file_id = server.upload(b"rows")
    path = f"/v1/files/{file_id}/content"
    reply = server.user.get(path, follow_redirects=False)
    assert reply.status_code == 307
    location = reply.headers["location"]
    assert location.startswith(f"{s3.endpoint}/{s3.bucket}/")
    assert "X-Amz-Expires=60" in location
    assert "test-secret" not in location
    assert reply.headers["cache-control"] == "no-store"
    assert server.worker.claim_reading(file_id)["reading"]
    worker = server.worker.get(path.replace("/v1", "/internal"), follow_redirects=False)
    assert (worker.status_code, worker.content) == (200, b"rows"), "workers need no store"


@pytest.mark.parametrize("storage_url", ["s3"], indirect=True)
def test_without_a_key_there_is_no_link(server: Server) -> None:
    path = f"/v1/files/{server.upload(b'rows')}/content"
    assert server.anonymous.get(path, follow_redirects=False).status_code == 401


def test_a_local_directory_cannot_sign_and_sends_the_bytes(server: Server) -> None:
    reply = server.user.get(f"/v1/files/{server.upload(b'rows')}/content")
    assert (reply.status_code, reply.content) == (200, b"rows")

"""Blobs: the content matches its sha256, and only the lease holder stores."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from .actors import Server

pytestmark = pytest.mark.parametrize("storage_url", ["local", "s3"], indirect=True)


@pytest.fixture
def claim(server: Server) -> dict[str, Any]:
    server.create_job(server.good_file())
    return server.worker.claim()


def stored(server: Server, content: bytes) -> bool:
    return server.storage.size(hashlib.sha256(content).hexdigest()) is not None


def test_a_blob_is_stored_under_its_hash(server: Server, claim: dict[str, Any]) -> None:
    reply = server.worker.put_blob(claim, b"weights")
    assert reply.json()["sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert reply.json()["bytes"] == 7
    assert stored(server, b"weights")


def test_storing_twice_is_harmless(server: Server, claim: dict[str, Any]) -> None:
    assert server.worker.put_blob(claim, b"weights").status_code == 200
    assert server.worker.put_blob(claim, b"weights").status_code == 200


def test_a_damaged_blob_is_refused(server: Server, claim: dict[str, Any]) -> None:
    wrong = hashlib.sha256(b"other").hexdigest()
    reply = server.worker.put_blob(claim, b"weights", wrong)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "upload_mismatch")
    assert "send the file again" in reply.json()["error"]["hint"]
    assert not stored(server, b"weights")


@pytest.mark.parametrize("sha256", ["../../evil", "..%2f..%2fevil", "0" * 63, "G" * 64, "0" * 65])
def test_a_name_that_is_no_hash_is_refused(
    server: Server, claim: dict[str, Any], sha256: str
) -> None:
    assert server.worker.put_blob(claim, b"weights", sha256).status_code in (400, 404, 405)


def test_a_wrong_fence_stores_nothing(server: Server, claim: dict[str, Any]) -> None:
    reply = server.worker.put_blob({**claim, "fence": claim["fence"] + 1}, b"weights")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "fenced_out")
    assert not stored(server, b"weights")


def test_who_lost_the_lease_stores_nothing(server: Server, claim: dict[str, Any]) -> None:
    server.age_lease(claim["job_id"])
    server.take_back()
    assert server.worker.put_blob(claim, b"weights").status_code == 409
    assert not stored(server, b"weights")


def test_without_a_fence_nothing_is_stored(server: Server, claim: dict[str, Any]) -> None:
    path = f"/internal/jobs/{claim['job_id']}/blobs/{'0' * 64}"
    assert server.worker.put(path, content=b"x").status_code == 400


def test_an_empty_blob_is_a_blob(server: Server, claim: dict[str, Any]) -> None:
    assert server.worker.put_blob(claim, b"").json()["bytes"] == 0

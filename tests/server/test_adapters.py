"""Adapters: the same bytes file by file, in parts, and as a tar that any tool reads."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from tunesmith_schema.documents import DOCUMENT_VERSION
from tunesmith_server.models import AdapterRow

from .actors import Server
from .callers import VERDICT


@pytest.fixture
def files(server: Server) -> dict[str, bytes]:
    """Files of the only adapter."""
    server.create_job(server.good_file())
    return server.worker.succeed(server.worker.claim())


@pytest.fixture
def adapter(server: Server, files: dict[str, bytes]) -> str:
    [job] = server.user.json("/v1/fine_tuning/jobs")["data"]
    return f"/v1/adapters/{job['adapter_id']}"


def test_an_adapter_lists_its_files(server: Server, adapter: str, files: dict[str, bytes]) -> None:
    shown = server.user.json(adapter)
    assert (shown["object"], shown["kind"], shown["step"]) == ("adapter", "lora", 3)
    assert shown["base_model"] == "tiny-llama"
    assert {file["name"]: file["bytes"] for file in shown["files"]} == {
        name: len(content) for name, content in files.items()
    }
    assert shown["bytes"] == sum(map(len, files.values()))
    assert server.user.json(f"/v1/models/{shown['model']}")["adapter_id"] == shown["id"]


def test_an_adapter_is_verified_if_it_has_a_verification(server: Server, adapter: str) -> None:
    shown = server.user.json(adapter)
    assert (shown["verified"], shown["verification_sha256"]) == (None, None)  # as of old workers
    server.create_job(server.good_file())
    content = b'{"kind": "lora"}'
    claim = server.worker.claim()
    server.worker.succeed(claim, verification=content)
    job = server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}")
    shown = server.user.json(f"/v1/adapters/{job['adapter_id']}")
    assert shown["verified"] is True
    assert shown["verification_sha256"] == hashlib.sha256(content).hexdigest()


def test_adapters_are_listed_newest_first(server: Server, adapter: str) -> None:
    server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    newest, first = server.user.json("/v1/adapters")["data"]
    assert first == server.user.json(adapter)
    assert server.user.json("/v1/adapters", params={"after": newest["id"]})["data"] == [first]
    with server.database.write.begin() as session:
        session.get_one(AdapterRow, first["id"]).files = [{"name": 1}]
    _, damaged = server.user.json("/v1/adapters")["data"]
    assert (damaged["id"], damaged["files"]) == (first["id"], [])
    assert server.user.get(adapter).status_code == 404


def test_the_verdict_of_the_probe_is_json(server: Server, adapter: str) -> None:
    error = server.user.get(f"{adapter}/verification").json()["error"]
    assert (error["code"], "did not load its saved files" in error["message"]) == (
        "no_report",
        True,
    )
    for content, status in ((VERDICT, 200), ({"kind": "lora"}, 404)):
        server.create_job(server.good_file())
        claim = server.worker.claim()
        server.worker.succeed(claim, verification=json.dumps(content).encode())
        job = server.user.json(f"/v1/fine_tuning/jobs/{claim['job_id']}")
        reply = server.user.get(f"/v1/adapters/{job['adapter_id']}/verification")
        assert reply.status_code == status, reply.text
        if status == 200:
            assert reply.json() == {**VERDICT, "document_version": DOCUMENT_VERSION}


def test_the_tar_holds_exactly_the_files(
    server: Server, adapter: str, files: dict[str, bytes]
) -> None:
    reply = server.user.get(f"{adapter}/content")
    assert reply.headers["content-type"] == "application/x-tar"
    assert int(reply.headers["content-length"]) == len(reply.content)
    with tarfile.open(fileobj=io.BytesIO(reply.content), mode="r:") as archive:
        members = archive.getmembers()
        assert all(member.isfile() for member in members)
        found = {}
        for member in members:
            content = archive.extractfile(member)
            assert content is not None
            found[member.name] = content.read()
    assert found == files


def test_the_tar_is_the_same_every_time(server: Server, adapter: str) -> None:
    first, second = (server.user.get(f"{adapter}/content").content for _ in range(2))
    assert first == second


def test_each_file_can_be_had_alone_and_in_parts(
    server: Server, adapter: str, files: dict[str, bytes]
) -> None:
    for name, content in files.items():
        reply = server.user.get(f"{adapter}/content/{name}")
        assert (reply.status_code, reply.content) == (200, content)
    name = "adapter_model.safetensors"
    reply = server.user.get(f"{adapter}/content/{name}", headers={"range": "bytes=1000-"})
    assert (reply.status_code, reply.content) == (206, files[name][1000:])


def test_a_file_that_it_does_not_have_is_404(server: Server, adapter: str) -> None:
    reply = server.user.get(f"{adapter}/content/other.bin")
    assert reply.status_code == 404
    assert "adapter_config.json" in reply.json()["error"]["hint"]


def test_the_content_outlives_the_janitors_sweep(
    server: Server, adapter: str, files: dict[str, bytes]
) -> None:
    server.janitor().sweep()
    for name, content in files.items():
        assert server.user.get(f"{adapter}/content/{name}").content == content

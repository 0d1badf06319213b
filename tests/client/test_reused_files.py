"""`client.files.create` reuses a file that the server already has."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Tunesmith
from .fake_uploads import CONTENT, FakeUploads
from .fakes import Script, client_of, job, page
from .local_server import LocalServer

REFUSED = {"problems": [{"row": 1, "message": "no prompt"}], "num_problems": 1}
SHA256 = hashlib.sha256(b"rows").hexdigest()


def stored(**fields: Any) -> dict[str, Any]:  # Any: JSON
    file = {"id": "file-1", "bytes": 4, "created_at": 1, "filename": "rows.jsonl"}
    file |= {"purpose": "fine-tune", "status": "processed", "sha256": SHA256}
    validation = {"ok": True, "usable_for": ["supervised"], "refused": {"reinforcement": REFUSED}}
    return {**file, "validation": validation, **fields}


def server_with(*files: dict[str, Any]) -> Script:
    """Answers to: the list of files, then an upload."""
    new = httpx.Response(200, json=stored(id="file-new"))
    return Script(httpx.Response(200, json=page(*files)), new)


@pytest.mark.parametrize("status", ["processed", "uploaded"])
def test_the_same_content_is_not_uploaded_again(tmp_path: Path, status: str) -> None:
    path = tmp_path / "copy.jsonl"
    path.write_bytes(b"rows")
    script = server_with(stored(status=status, validation=None))
    file = client_of(script).files.create(file=path)
    assert (file.id, file.reused) == ("file-1", True)
    [request] = script.requests
    assert request.method == "GET"
    assert request.url.params["sha256"] == SHA256
    assert request.url.params["purpose"] == "fine-tune"


@pytest.mark.parametrize(
    "difference",
    [
        {"status": "error"},
        {"validation": {"ok": True, "usable_for": ["supervised"]}},
        {"expires_at": 99_999_999_999},
        {"purpose": "evals"},
        {"filename": "rows.csv"},
        {"sha256": "0" * 64},
        {"sha256": None},
    ],
    ids=lambda difference: next(iter(difference)),
)
def test_a_file_that_differs_or_may_vanish_is_not_reused(difference: dict[str, Any]) -> None:
    """A server without the filter returns files with other content. A server that knew
    fewer methods asks for a new upload."""
    file = client_of(server_with(stored(**difference))).files.create(file=("rows.jsonl", b"rows"))
    assert (file.id, file.reused) == ("file-new", False)


def test_a_deleted_file_is_uploaded_again() -> None:
    file = client_of(server_with()).files.create(file=("rows.jsonl", b"rows"))
    assert (file.id, file.reused) == ("file-new", False)


def test_a_large_file_is_recognised_too(fake: FakeUploads, path: Path) -> None:
    client = client_of(fake)
    uploaded = client.files.create(file=path)
    assert not uploaded.reused
    fake.listed = [uploaded.model_dump(mode="json")]
    requests = len(fake.asked)
    assert client.files.create(file=path).reused
    assert len(fake.asked) == requests
    assert uploaded.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_the_command_names_the_reused_file(
    tunesmith: Tunesmith, server: LocalServer, tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"rows")
    server.answers["GET /v1/files"] = page(stored())
    done = tunesmith("files", "upload", "rows.jsonl", "--json")
    assert done.stderr == "already uploaded as file-1; reused\n"
    assert json.loads(done.stdout) == stored()
    assert [seen.method for seen in server.seen] == ["GET"]


def test_a_job_reuses_its_files(tunesmith: Tunesmith, server: LocalServer, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"rows")
    server.answers["GET /v1/files"] = page(stored())
    server.answers["POST /v1/fine_tuning/jobs"] = job()
    tunesmith("jobs", "create", "--model", "tiny", "--data", "rows.jsonl")
    assert [seen.method for seen in server.seen] == ["GET", "POST"]
    assert json.loads(server.seen[1].body)["training_file"] == "file-1"

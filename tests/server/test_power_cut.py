"""Power cuts: after a crash at any point, every row that promises content has its bytes."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import stat
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import IO

import pytest
from sqlalchemy import select, text

from tunesmith_server.core.database import Database
from tunesmith_server.models import (
    AdapterRow,
    BlobRow,
    FileRow,
    JobRow,
    ResumePointRow,
    SamplesRow,
    UploadPartRow,
    UploadRow,
)

from .actors import Server
from .callers import event
from .power_cut import Crash, PowerCuts
from .test_uploads import WHOLE, blobs, complete, filled

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def cuts(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[PowerCuts]:
    folder = server.settings.data_dir
    recorder = PowerCuts(folder / "blobs", folder / "tunesmith.db", monkeypatch)
    yield recorder
    recorder.close()


def promised(database: Database) -> tuple[dict[str, str], list[str], set[str]]:
    """Return the sha256 by path of all content that rows promise, the succeeded jobs, and the paths
    that garbage collection knows."""
    with database.read() as session:
        hashes = list(session.scalars(select(FileRow.sha256)))
        hashes += session.scalars(select(SamplesRow.sha256))
        for column in (AdapterRow.files, ResumePointRow.files):
            for files in session.scalars(select(column)):
                hashes += [file["sha256"] for file in files]
        pending = select(UploadRow.id).where(UploadRow.status == "pending")
        parts = session.execute(
            select(UploadPartRow.id, UploadPartRow.sha256).where(
                UploadPartRow.upload_id.in_(pending)
            )
        ).all()
        succeeded = list(session.scalars(select(JobRow.id).where(JobRow.state == "succeeded")))
        names = list(session.scalars(select(BlobRow.name)))
    paths = {path_of(sha256): sha256 for sha256 in hashes}
    paths |= {f"parts/{part_id}": sha256 for part_id, sha256 in parts}
    return paths, succeeded, {path_of(name) for name in names}


def path_of(name: str) -> str:
    return f"parts/{name}" if name.startswith("part-") else f"{name[:2]}/{name}"


def broken_promises(crash: Crash, folder: Path) -> tuple[list[str], list[str]]:
    """Return the paths of missing or damaged content and of objects that garbage collection would
    never find, and the succeeded jobs."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = folder / "tunesmith.db"
    file.write_bytes(crash.database[0])
    if crash.database[1]:
        file.with_name("tunesmith.db-wal").write_bytes(crash.database[1])
    database = Database(f"sqlite:///{file}")
    paths, succeeded, recorded = promised(database)
    database.dispose()
    damaged = [
        path
        for path, sha256 in paths.items()
        if path not in crash.blobs or hashlib.sha256(crash.blobs[path]).hexdigest() != sha256
    ]
    complete = {path for path in crash.blobs if not path.rpartition("/")[2].startswith(".")}
    return damaged + sorted(complete - recorded - {"tunesmith-installation"}), succeeded


def check(cuts: PowerCuts, tmp_path: Path, *, at_least: int) -> None:
    for crash in cuts.crashes:
        damaged, succeeded = broken_promises(crash, tmp_path / "after")
        assert damaged == [], (crash.point, succeeded)
    assert len(cuts.crashes) >= at_least, [crash.point for crash in cuts.crashes]


@pytest.mark.parametrize("fault", ["file", "folder", "row first"])
def test_a_planted_fault_is_found(
    server: Server, cuts: PowerCuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    fsync, put = os.fsync, server.storage.put
    if fault == "row first":
        later: list[tuple[IO[bytes], str]] = []
        monkeypatch.setattr(server.storage, "put", lambda *given: later.append(given))
    else:

        def forgetful(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode) != (fault == "folder"):
                fsync(descriptor)

        monkeypatch.setattr(os, "fsync", forgetful)
    server.upload(b"content")
    if fault == "row first":
        put(io.BytesIO(b"content"), later[0][1])
    with pytest.raises(AssertionError, match="losing"):
        check(cuts, tmp_path, at_least=1)


def test_an_upload_in_parts(server: Server, cuts: PowerCuts, tmp_path: Path) -> None:
    upload_id, ids = filled(server)
    assert complete(server, upload_id, ids).status_code == 200
    server.janitor().round()
    check(cuts, tmp_path, at_least=30)
    path = f"{hashlib.sha256(WHOLE).hexdigest()[:2]}/{hashlib.sha256(WHOLE).hexdigest()}"
    assert cuts.crashes[-1].blobs[path] == WHOLE


def test_a_job_from_its_file_to_its_success(
    server: Server, cuts: PowerCuts, tmp_path: Path
) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    point = server.worker.store(claim, {"manifest.json": b"1", "state.safetensors": b"w" * 70_000})
    samples = server.worker.store(claim, {"step-000001.jsonl.gz": b"compressed"})
    checkpoint = server.worker.store(claim, {"adapter_model.safetensors": b"step 1"})
    server.worker.report(
        claim,
        events=[
            event(1, kind="samples", data={"step": 1, "count": 1}, files=samples),
            event(2, kind="checkpoint", data={"step": 1, "metrics": {}}, files=checkpoint),
            event(3, kind="resume_point", data={"step": 1, "directory": "x"}, files=point),
        ],
    )
    server.worker.succeed(claim)
    check(cuts, tmp_path, at_least=40)
    assert broken_promises(cuts.crashes[-1], tmp_path / "end") == ([], [job_id])


def test_content_that_another_file_has_already(
    server: Server, cuts: PowerCuts, tmp_path: Path
) -> None:
    """The second upload finds the content and must not replace it by something less durable."""
    server.upload(WHOLE[:90_000])
    server.upload(WHOLE[:90_000])
    check(cuts, tmp_path, at_least=8)


def test_a_garbage_collection(server: Server, cuts: PowerCuts, tmp_path: Path) -> None:
    """A deleted object that came back after its row is gone would stay for ever."""
    for content in (b"one", b"two"):
        server.user.delete(f"/v1/files/{server.upload(content)}")
    kept = server.upload(b"three")
    assert server.janitor().sweep(timedelta(seconds=-5)) == 2
    upload_id, _ = filled(server)
    server.user.post(f"/v1/uploads/{upload_id}/cancel")
    server.janitor().round()
    check(cuts, tmp_path, at_least=30)
    names = {path.partition("/")[2] for path in cuts.crashes[-1].blobs if "/" in path}
    assert names == {hashlib.sha256(b"three").hexdigest()}, kept


@pytest.mark.parametrize("damage", [b"", b"x", WHOLE[:89_999] + b"!"], ids=["empty", "cut", "same"])
def test_a_damaged_blob_is_replaced_and_a_good_one_is_not(server: Server, damage: bytes) -> None:
    content = WHOLE[:90_000]
    file_id = server.upload(content)
    [file] = [server.settings.data_dir / "blobs" / path for path in blobs(server) if len(path) > 60]
    before = file.stat().st_ino
    server.upload(content)
    assert file.stat().st_ino == before, "a good blob is never written again"
    file.write_bytes(damage)
    server.upload(content)
    assert server.user.get(f"/v1/files/{file_id}/content").content == content


def test_a_commit_of_sqlite_is_synced(server: Server) -> None:
    with server.database.write.begin() as session:
        assert session.execute(text("PRAGMA synchronous")).scalar() == 2, "FULL"

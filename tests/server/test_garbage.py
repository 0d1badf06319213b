"""Garbage collection: what it deletes, what it leaves, and `tunesmith gc`."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from tunesmith_server import garbage
from tunesmith_server.__main__ import main
from tunesmith_server.core.errors import Unavailable
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import BlobRow
from tunesmith_server.services import blobs

from .actors import Server

NO_GRACE = timedelta(seconds=-5)


def name_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def unused(server: Server, content: bytes) -> str:
    """Upload and delete a file. Return the name of its content."""
    server.user.delete(f"/v1/files/{server.upload(content)}")
    return name_of(content)


def age(server: Server, seconds: float, **values: Any) -> None:
    with server.database.write.begin() as session:
        changes = {"last_used_at": BlobRow.last_used_at - seconds, **values}
        session.execute(update(BlobRow).values(changes))


def names(server: Server) -> set[str]:
    with server.database.read() as session:
        return set(session.scalars(select(BlobRow.name)))


def collect(server: Server, grace: timedelta = NO_GRACE) -> set[str]:
    return set(garbage.collect(server.database, server.storage, grace).sizes)


def test_content_waits_a_day_since_its_last_use(server: Server) -> None:
    name = unused(server, b"once")
    day = timedelta(days=1)
    age(server, 86_400 - 60)
    assert collect(server, day) == set()
    assert unused(server, b"once") == name, "used again"
    age(server, 120)
    assert collect(server, day) == set()
    age(server, 86_400)
    assert collect(server, day) == {name}
    assert (server.storage.size(name), names(server)) == (None, set())


def test_content_that_is_used_between_search_and_deletion_stays(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unused(server, b"again")
    age(server, 7200)
    find = garbage.find

    def then_upload(*arguments: Any) -> garbage.Garbage:
        found = find(*arguments)
        assert name in found.sizes
        server.upload(b"again")
        return found

    monkeypatch.setattr(garbage, "find", then_upload)
    assert collect(server, timedelta(hours=1)) == set()
    assert server.storage.size(name) == 5


def test_content_that_is_being_deleted_is_not_taken_for_stored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upload of the same content in this moment is told to come again, and then stores it."""
    name = unused(server, b"again")
    delete, replies = Storage.delete, []

    def upload_first(storage: Storage, listed: list[str]) -> None:
        form = {"files": {"file": ("a.jsonl", b"again")}, "data": {"purpose": "fine-tune"}}
        replies.append(server.user.post("/v1/files", **form))
        delete(storage, listed)

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "delete", upload_first)
        assert collect(server) == {name}
    [reply] = replies
    assert (reply.status_code, reply.json()["error"]["retryable"]) == (503, True)
    server.upload(b"again")
    assert server.storage.size(name) == 5


def test_a_collection_that_a_crash_ended_is_finished_by_the_next(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = {unused(server, b"one"), unused(server, b"two")}
    delete = Storage.delete

    def crash(storage: Storage, paths: list[str]) -> None:
        delete(storage, paths[:1])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "delete", crash)
        with pytest.raises(KeyboardInterrupt):
            collect(server)
    assert collect(server) == set(), "another process may be deleting"
    age(server, 0, deleting_at=BlobRow.deleting_at - 301)
    assert collect(server) == listed
    assert [server.storage.size(name) for name in listed] == [None, None]


def test_a_writer_takes_over_what_a_crashed_collection_left(server: Server) -> None:
    name = unused(server, b"taken over")
    with server.database.write.begin() as session:
        marks = blobs.start_deleting(session, [name], NO_GRACE)
    with pytest.raises(Unavailable), server.database.write.begin() as session:
        blobs.announce(session, name, 10)
    age(server, 0, deleting_at=time.time() - 301)
    server.upload(b"taken over")
    with server.database.write.begin() as session:
        blobs.finish_deleting(session, marks)
    assert names(server) == {name}


def test_a_slow_collection_leaves_what_it_marked_too_long_ago(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = unused(server, b"slow")
    monkeypatch.setattr(garbage, "_MAX_MARKED_SECONDS", -1.0)
    assert collect(server) == set()
    assert server.storage.size(name) == 4


@pytest.fixture
def gc(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> Any:  # Any: a function with optional arguments
    """Function that runs `tunesmith gc` and returns its status and its output."""
    settings = server.settings

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.MonkeyPatch.context() as patched:
            patched.setenv("TUNESMITH_DATABASE_URL", settings.database_url)
            status = main(["gc", "--data-dir", str(settings.data_dir), *arguments])
        return status, *capsys.readouterr()

    return run


def test_a_dry_run_shows_what_would_go_and_keeps_it(server: Server, gc: Any) -> None:
    contents = [b"%d" % number * 100 for number in range(25)]
    listed = sorted(unused(server, content) for content in contents)
    server.upload(b"kept")
    assert gc("--dry-run")[:2] == (0, "would delete 0 unused blobs, 0 bytes\n"), (
        "younger than a day"
    )
    age(server, 86_400 + 60)
    status, text, _ = gc("--dry-run")
    size = sum(map(len, contents))
    assert (status, text.splitlines()[0]) == (0, f"would delete 25 unused blobs, {size:,} bytes")
    assert [line.split()[0] for line in text.splitlines()[1:-1]] == listed[:20]
    assert text.splitlines()[-1] == "  and 5 more"
    document = json.loads(gc("--dry-run", "--json")[1])
    assert document == {"dry_run": True, "count": 25, "bytes": size, "names": listed[:20]}
    assert all(server.storage.size(name) for name in listed)
    assert gc()[1].startswith("deleted 25 unused blobs")
    assert not any(server.storage.size(name) for name in listed)
    assert server.storage.size(name_of(b"kept")) == 4


def test_a_dry_run_claims_no_store(server: Server, gc: Any, tmp_path: Path) -> None:
    """A dry run with a wrong setting must not lock the owner of the store out."""
    new = tmp_path / "new"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TUNESMITH_STORAGE_URL", new.as_uri())
        assert gc("--dry-run")[:2] == (0, "would delete 0 unused blobs, 0 bytes\n")
    assert Storage(new.as_uri()).installation_id() is None


def test_gc_refuses_a_store_of_another_installation_until_it_is_adopted(
    server: Server, gc: Any
) -> None:
    name = unused(server, b"ours")
    age(server, 86_400 + 60)
    server.storage.set_installation_id("inst-other", replace=True)
    for arguments in ((), ("--dry-run",)):
        status, text, error = gc(*arguments)
        assert (status, text) == (1, "")
        assert "belongs to installation inst-other" in error
        assert "tunesmith gc --adopt" in error
    assert server.storage.size(name) == 4
    status, text, _ = gc("--adopt")
    assert (status, server.storage.size(name)) == (0, 4)
    assert "belongs to installation" in text
    assert gc()[:1] == (0,)
    assert server.storage.size(name) is None

"""Uploads that are not completed: expired, cancelled, swept, or crashed half way."""

from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from tunesmith_server.core.storage import Storage
from tunesmith_server.models import UploadPartRow, UploadRow
from tunesmith_server.services import blobs as blob_rows
from tunesmith_server.services.data import upload_completion

from .actors import Server
from .test_uploads import begin, blobs, complete, filled, refused, send


def let_time_pass(server: Server, seconds: float) -> None:
    with server.database.write.begin() as session:
        session.execute(update(UploadRow).values(expires_at=UploadRow.expires_at - seconds))


def status(server: Server, upload_id: str) -> str:
    return str(server.user.json(f"/v1/uploads/{upload_id}")["status"])


def part_rows(server: Server) -> int:
    with server.database.read() as session:
        return len(session.scalars(select(UploadPartRow.id)).all())


def test_an_upload_expires_by_the_clock_alone(server: Server) -> None:
    upload_id, ids = filled(server)
    let_time_pass(server, 3600)
    assert status(server, upload_id) == "expired"
    refused(send(server, upload_id, b"late"), "upload_closed")
    refused(complete(server, upload_id, ids), "upload_closed")
    refused(server.user.post(f"/v1/uploads/{upload_id}/cancel"), "upload_closed")


def test_the_janitor_deletes_the_parts_of_what_is_over(server: Server) -> None:
    expired, _ = filled(server)
    let_time_pass(server, 3600 + 601)
    cancelled, _ = filled(server)
    server.user.post(f"/v1/uploads/{cancelled}/cancel")
    completed, ids = filled(server)
    complete(server, completed, ids)
    open_one, _ = filled(server)
    server.janitor().round()
    assert part_rows(server) == 3
    assert len(blobs(server)) == 3 + 1, "the parts of the open one, and the file"
    assert [status(server, upload_id) for upload_id in (expired, cancelled, completed)] == [
        "expired", "cancelled", "completed",
    ]  # fmt: skip
    assert status(server, open_one) == "pending"


def test_an_upload_is_forgotten_a_day_after_its_expiry(server: Server) -> None:
    upload_id, _ = filled(server)
    let_time_pass(server, 25 * 3600 + 1)
    server.janitor().round()
    server.janitor().round()
    assert server.user.get(f"/v1/uploads/{upload_id}").status_code == 404
    assert (part_rows(server), blobs(server)) == (0, [])


def test_the_sweep_leaves_parts_that_are_waited_for(server: Server) -> None:
    upload_id, ids = filled(server)
    with server.database.write.begin() as session:
        blob_rows.announce(session, "part-of-a-crash", 4)
    server.storage.put_part(io.BytesIO(b"lost"), "part-of-a-crash")
    assert server.janitor().sweep(older_than=timedelta(seconds=-5)) == 1
    assert complete(server, upload_id, ids).status_code == 200


def test_a_part_that_comes_as_the_upload_is_cancelled_leaves_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id = begin(server)
    put_part = Storage.put_part

    def cancel_meanwhile(storage: Storage, *arguments: object) -> None:
        put_part(storage, *arguments)  # type: ignore[arg-type]  # as they came
        server.user.post(f"/v1/uploads/{upload_id}/cancel")

    monkeypatch.setattr(Storage, "put_part", cancel_meanwhile)
    refused(send(server, upload_id, b"12345"), "upload_closed")
    assert (part_rows(server), blobs(server)) == (0, [])


def test_a_cancel_during_the_completion_wins(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, ids = filled(server)
    put_pieces = Storage.put_pieces

    def cancel_meanwhile(storage: Storage, pieces: Iterable[bytes], sha256: str) -> None:
        put_pieces(storage, pieces, sha256)
        server.user.post(f"/v1/uploads/{upload_id}/cancel")

    monkeypatch.setattr(Storage, "put_pieces", cancel_meanwhile)
    refused(complete(server, upload_id, ids), "upload_closed")
    assert server.user.json("/v1/files")["data"] == []
    assert server.wake_ups.sent == []


def test_a_completion_that_began_in_time_may_end_late(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, ids = filled(server)
    put_pieces = Storage.put_pieces

    def run_out_of_time(storage: Storage, pieces: Iterable[bytes], sha256: str) -> None:
        put_pieces(storage, pieces, sha256)
        let_time_pass(server, 3600)
        server.janitor().round()

    monkeypatch.setattr(Storage, "put_pieces", run_out_of_time)
    assert complete(server, upload_id, ids).json()["status"] == "completed"


def test_parts_that_went_away_meanwhile_ask_for_another_try(server: Server) -> None:
    upload_id, ids = filled(server)
    server.storage.delete_part(ids[1])
    reply = complete(server, upload_id, ids)
    assert (reply.status_code, reply.json()["error"]["retryable"]) == (503, True)
    assert reply.headers["retry-after"]


def test_a_file_that_was_cut_off_is_not_stored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload_id, ids = filled(server)
    put_pieces = Storage.put_pieces

    def lose_the_last(storage: Storage, pieces: Iterable[bytes], sha256: str) -> None:
        storage.delete_part(ids[-1])
        put_pieces(storage, pieces, sha256)

    monkeypatch.setattr(Storage, "put_pieces", lose_the_last)
    assert complete(server, upload_id, ids).status_code == 503
    assert len(blobs(server)) == 2, "the other parts"


def test_what_a_killed_process_was_storing_is_swept(server: Server) -> None:
    file_id = server.upload(b"kept\n")
    [blob] = blobs(server)
    folder, _, name = blob.partition("/")
    unfinished = (f"{blob}#1", f"{folder}/.{name}.0123456789abcdef.part")
    for path in unfinished:  # of an earlier version, and of this one
        (server.settings.data_dir / "blobs" / path).write_bytes(b"ke")
    janitor = server.janitor()
    janitor.sweep()
    assert len(blobs(server)) == 3, "it may be being written"
    janitor.sweep(older_than=timedelta(seconds=-5))
    assert blobs(server) == [blob]
    assert server.user.get(f"/v1/files/{file_id}/content").content == b"kept\n"


def test_very_many_parts_are_deleted_bit_by_bit(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_completion, "MAX_DELETED", 2)
    upload_id, _ = filled(server)
    server.user.post(f"/v1/uploads/{upload_id}/cancel")
    janitor = server.janitor()
    janitor.round()
    assert part_rows(server) == len(blobs(server)) == 1
    janitor.round()
    assert part_rows(server) == len(blobs(server)) == 0

"""Files: upload, read, list, delete unless in use, expire."""

from __future__ import annotations

import hashlib

import pytest

from tunesmith_schema import JobState
from tunesmith_schema.queue import VALIDATE_FILE_TASK
from tunesmith_server.models import FileRow

from .actors import ROWS, Server


def test_an_upload_shows_what_was_stored(server: Server) -> None:
    file_id = server.upload(ROWS, "rows.jsonl")
    file = server.user.json(f"/v1/files/{file_id}")
    assert file["id"].startswith("file-")
    assert (file["object"], file["filename"], file["purpose"], file["bytes"]) == (
        "file", "rows.jsonl", "fine-tune", len(ROWS),
    )  # fmt: skip
    assert file["sha256"] == hashlib.sha256(ROWS).hexdigest()
    assert file["expires_at"] is None
    assert server.user.get(f"/v1/files/{file_id}/content").content == ROWS


def test_a_data_set_is_handed_to_a_light_worker(server: Server) -> None:
    file_id = server.upload()
    assert server.wake_ups.sent == [(VALIDATE_FILE_TASK, file_id)]
    assert server.user.json(f"/v1/files/{file_id}")["status"] == "uploaded"
    server.validate(file_id, rows=7)
    file = server.user.json(f"/v1/files/{file_id}")
    assert (file["status"], file["validation"]["rows"]) == ("processed", 7)


def test_a_file_for_something_else_is_not_read(server: Server) -> None:
    file_id = server.upload(purpose="assistants")
    assert server.wake_ups.sent == []
    assert server.user.json(f"/v1/files/{file_id}")["status"] == "processed"


def test_a_bad_data_set_says_which_row_is_bad(server: Server) -> None:
    file = server.user.json(f"/v1/files/{server.bad_file()}")
    assert (file["status"], file["status_details"]) == ("error", "row 1: not JSON")


def test_files_are_found_by_their_content(server: Server) -> None:
    wanted = hashlib.sha256(ROWS).hexdigest()
    first, _, evals = (
        server.upload(ROWS),
        server.upload(ROWS * 2),
        server.upload(ROWS, purpose="evals"),
    )
    listed = server.user.json("/v1/files", params={"sha256": wanted})
    assert [file["id"] for file in listed["data"]] == [evals, first]
    listed = server.user.json("/v1/files", params={"sha256": wanted, "purpose": "evals"})
    assert [file["id"] for file in listed["data"]] == [evals]
    page = server.user.json("/v1/files", params={"sha256": wanted, "limit": 1})
    assert (page["has_more"], page["last_id"]) == (True, evals)
    page = server.user.json("/v1/files", params={"sha256": wanted, "after": evals})
    assert ([file["id"] for file in page["data"]], page["has_more"]) == ([first], False)
    server.user.delete(f"/v1/files/{first}")
    assert server.user.json("/v1/files", params={"sha256": wanted})["last_id"] == evals


@pytest.mark.parametrize("sha256", ["abc", "X" * 64, "A" * 64])
def test_a_malformed_sha256_is_refused(server: Server, sha256: str) -> None:
    refused = server.user.get("/v1/files", params={"sha256": sha256})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "sha256")


def test_the_same_content_twice_is_stored_once_and_read_twice(server: Server) -> None:
    first, second = server.upload(ROWS), server.upload(ROWS)
    assert first != second
    blobs = [path for path in (server.settings.data_dir / "blobs").glob("*/*") if path.is_file()]
    assert len(blobs) == 1
    assert server.user.delete(f"/v1/files/{first}").json()["deleted"] is True
    server.janitor().sweep()
    assert server.user.get(f"/v1/files/{second}/content").content == ROWS


def test_an_empty_file_is_refused(server: Server) -> None:
    reply = server.user.post(
        "/v1/files", files={"file": ("empty.jsonl", b"")}, data={"purpose": "fine-tune"}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "file"


def test_an_unknown_purpose_is_refused(server: Server) -> None:
    reply = server.user.post("/v1/files", files={"file": ("a", b"x")}, data={"purpose": "fun"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "purpose"


def test_a_deleted_file_is_gone(server: Server) -> None:
    file_id = server.upload()
    reply = server.user.delete(f"/v1/files/{file_id}")
    assert reply.json() == {"id": file_id, "object": "file", "deleted": True}
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        assert server.user.get(path).status_code == 404
    assert server.user.delete(f"/v1/files/{file_id}").status_code == 404


def test_a_file_that_a_job_needs_cannot_be_deleted(server: Server) -> None:
    training, validation = server.good_file(), server.good_file()
    job_id = server.create_job(training, validation_file=validation)
    for file_id in (training, validation):
        reply = server.user.delete(f"/v1/files/{file_id}")
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "file_in_use")
        assert reply.headers["x-should-retry"] == "false", "the openai client retries other 409s"
    server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    assert server.user.delete(f"/v1/files/{training}").status_code == 200
    assert server.job(job_id)["state"] == JobState.CANCELLED


def test_a_file_goes_when_it_expires(server: Server) -> None:
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    file_id = server.upload(ROWS, "rows.jsonl", **form)
    file = server.user.json(f"/v1/files/{file_id}")
    assert file["expires_at"] == pytest.approx(file["created_at"] + 3600, abs=1)
    server.janitor().round()
    assert server.user.get(f"/v1/files/{file_id}").status_code == 200
    _expire(server, file_id)
    server.janitor().round()
    assert server.user.get(f"/v1/files/{file_id}").status_code == 404


def test_an_expired_file_stays_while_a_job_needs_it(server: Server) -> None:
    file_id = server.good_file()
    job_id = server.create_job(file_id)
    _expire(server, file_id)
    server.janitor().round()
    assert server.user.get(f"/v1/files/{file_id}").status_code == 200
    server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    server.janitor().round()
    assert server.user.get(f"/v1/files/{file_id}").status_code == 404


@pytest.mark.parametrize(
    "form",
    [
        {"expires_after[seconds]": "3599"},
        {"expires_after[seconds]": "2592001"},
        {"expires_after[seconds]": "soon"},
        {"expires_after[anchor]": "created_at"},
        {"expires_after[anchor]": "last_active_at", "expires_after[seconds]": "3600"},
    ],
)
def test_a_wrong_expiry_is_refused(server: Server, form: dict[str, str]) -> None:
    reply = server.user.post(
        "/v1/files", files={"file": ("a", b"x")}, data={"purpose": "batch", **form}
    )
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith("expires_after[")


def _expire(server: Server, file_id: str) -> None:
    with server.database.write.begin() as session:
        row = session.get(FileRow, file_id)
        assert row is not None
        row.expires_at = 1.0

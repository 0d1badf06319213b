"""Files that crash every light worker: a limited number of tries, then an error."""

from __future__ import annotations

from typing import Any

from sqlalchemy import update

from tunesmith_schema.queue import VALIDATE_FILE_TASK
from tunesmith_server.janitor import WAKE_AGAIN_SECONDS
from tunesmith_server.models import FileRow
from tunesmith_server.services.files import MAX_READINGS

from .actors import Server


def begin(server: Server, file_id: str) -> dict[str, Any]:
    reply = server.worker.post(f"/internal/files/{file_id}/validation/begin")
    assert reply.status_code == 200, reply.text
    file: dict[str, Any] = reply.json()
    return file


def test_a_file_that_ends_every_worker_gets_a_verdict(server: Server) -> None:
    file_id = server.upload()
    job_id = server.create_job(file_id)
    for _ in range(MAX_READINGS):
        assert begin(server, file_id)["status"] == "uploaded"
    file = begin(server, file_id)
    assert file["status"] == "error"
    assert file["status_details"].startswith("the worker crashed 3 times")
    job = server.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_training_file")
    assert job["error"]["hint"]
    error = server.create_reply(file_id).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_training_file", "training_file")


def test_messages_that_no_worker_took_do_not_count(server: Server) -> None:
    file_id = server.upload()
    for _ in range(MAX_READINGS + 2):
        with server.database.write.begin() as session:
            session.execute(update(FileRow).values(woken_at=FileRow.woken_at - WAKE_AGAIN_SECONDS))
        server.wake_ups.sent.clear()
        server.janitor().round()
        assert server.wake_ups.sent == [(VALIDATE_FILE_TASK, file_id)]
    assert begin(server, file_id)["status"] == "uploaded"


def test_a_verdict_after_a_lost_worker_still_counts(server: Server) -> None:
    file_id = server.upload()
    begin(server, file_id)
    begin(server, file_id)
    server.validate(file_id)
    assert begin(server, file_id)["status"] == "processed"
    assert server.user.json(f"/v1/files/{file_id}")["status"] == "processed"


def test_a_deleted_file_is_not_begun(server: Server) -> None:
    assert server.worker.post("/internal/files/file-none/validation/begin").status_code == 404


def test_a_complaint_about_the_whole_file_names_no_row(server: Server) -> None:
    file_id = server.upload()
    problems = [{"row": 0, "message": "the file could not be read: why"}]
    server.validate(file_id, ok=False, problems=problems, num_problems=1)
    file = server.user.json(f"/v1/files/{file_id}")
    assert file["status_details"] == "the file could not be read: why"

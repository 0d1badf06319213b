"""Reading of uploaded files: one living reader at a time, and a limited number of lost readings."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from tunesmith_schema.queue import VALIDATE_FILE_TASK
from tunesmith_server.janitor import WAKE_AGAIN_SECONDS
from tunesmith_server.models import FileRow
from tunesmith_server.services.leasing import file_readings
from tunesmith_server.services.leasing.file_readings import MAX_LOST

from .actors import Server

RESULT = {"ok": True, "format": "messages", "rows": 1}


def change(server: Server, **columns: Any) -> None:
    with server.database.write.begin() as session:
        session.execute(update(FileRow).values(columns))


def lose(server: Server) -> None:
    """End all leases, as the janitor does for workers that are silent."""
    change(server, reading_until=FileRow.reading_until - 10_000)
    with server.database.write.begin() as session:
        file_readings.take_back_expired(session, server.wake_ups)


def status(server: Server, file_id: str) -> str:
    return str(server.user.json(f"/v1/files/{file_id}")["status"])


def test_a_file_that_ends_every_worker_gets_a_verdict(server: Server) -> None:
    file_id = server.upload()
    job_id = server.create_job(file_id)
    for _ in range(MAX_LOST):
        assert status(server, file_id) == "uploaded"
        assert server.worker.claim_reading(file_id)["reading"]
        lose(server)
    file = server.user.json(f"/v1/files/{file_id}")
    assert file["status"] == "error"
    assert file["status_details"].startswith("the worker crashed 3 times")
    job = server.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("failed", "invalid_training_file")
    assert job["error"]["hint"]
    error = server.create_reply(file_id).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_training_file", "training_file")


def test_messages_that_no_worker_took_do_not_count(server: Server) -> None:
    file_id = server.upload()
    for _ in range(MAX_LOST + 2):
        change(server, woken_at=FileRow.woken_at - WAKE_AGAIN_SECONDS)
        server.wake_ups.sent.clear()
        server.janitor().round()
        assert server.wake_ups.sent == [(VALIDATE_FILE_TASK, file_id)]
    assert server.worker.claim_reading(file_id)["reading"] == 1


def test_a_long_reading_is_never_given_to_another_worker(server: Server) -> None:
    """Ten times the 30 s after which a message is sent again, and four workers."""
    file_id = server.upload()
    lease = server.worker.claim_reading(file_id, "light-1")
    assert lease["reading"] == 1
    for beat in range(10):
        change(server, woken_at=FileRow.woken_at - WAKE_AGAIN_SECONDS - 1)
        server.wake_ups.sent.clear()
        server.janitor().round()
        assert server.wake_ups.sent == [], beat
        for name in ("light-2", "light-3", "light-4", "light-1"):
            assert server.worker.claim_reading(file_id, name)["reading"] == 0
        assert server.worker.read("renew", file_id, lease).status_code == 200
    assert server.worker.read("result", file_id, lease, result=RESULT).status_code == 200
    assert status(server, file_id) == "processed"


def test_a_renewal_extends_the_lease(server: Server) -> None:
    file_id = server.upload()
    lease = server.worker.claim_reading(file_id)
    change(server, reading_until=FileRow.reading_until - 10_000)
    assert server.worker.read("renew", file_id, lease).status_code == 200
    with server.database.write.begin() as session:
        assert file_readings.take_back_expired(session, server.wake_ups) == 0


def test_only_the_janitor_ends_a_lease_after_its_first_term(server: Server) -> None:
    """While the API is down, no worker can renew its lease."""
    file_id = server.upload()
    lease = server.worker.claim_reading(file_id)
    change(server, reading_until=1.0)
    assert server.worker.claim_reading(file_id, "light-2")["reading"] == 0
    server.janitor().round()
    assert server.worker.read("result", file_id, lease, result=RESULT).status_code == 200


def test_a_reader_that_lost_its_lease_is_refused(server: Server) -> None:
    file_id = server.upload()
    lost = server.worker.claim_reading(file_id)
    server.wake_ups.sent.clear()
    lose(server)
    assert server.wake_ups.sent == [(VALIDATE_FILE_TASK, file_id)]
    lease = server.worker.claim_reading(file_id, "light-2")
    assert lease["reading"] == 2
    for verb, fields in (("renew", {}), ("give-back", {}), ("result", {"result": RESULT})):
        reply = server.worker.read(verb, file_id, lost, **fields)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "fenced_out")
    assert status(server, file_id) == "uploaded"
    impostor = {"worker_id": "light-1", "reading": 2}
    assert server.worker.read("result", file_id, impostor, result=RESULT).status_code == 409


@pytest.mark.parametrize(("crashed", "end"), [(False, "uploaded"), (True, "error")])
def test_a_reading_given_back_counts_only_if_the_reader_was_killed(
    server: Server, crashed: bool, end: str
) -> None:
    file_id = server.upload()
    for _ in range(MAX_LOST):
        lease = server.worker.claim_reading(file_id)
        server.wake_ups.sent.clear()
        server.worker.read("give-back", file_id, lease, crashed=crashed)
    assert status(server, file_id) == end
    assert (server.wake_ups.sent == []) == crashed


def test_a_repeated_result_is_accepted(server: Server) -> None:
    file_id = server.upload()
    lease = server.worker.claim_reading(file_id)
    for _ in range(2):
        assert server.worker.read("result", file_id, lease, result=RESULT).status_code == 200
    assert server.worker.claim_reading(file_id)["reading"] == 0
    assert status(server, file_id) == "processed"


def test_a_verdict_after_lost_readings_still_counts(server: Server) -> None:
    file_id = server.upload()
    for _ in range(MAX_LOST - 1):
        server.worker.claim_reading(file_id)
        lose(server)
    server.validate(file_id)
    assert status(server, file_id) == "processed"


def test_a_deleted_file_is_not_read(server: Server) -> None:
    body = {"worker_id": "light-1"}
    assert (
        server.worker.post("/internal/files/file-none/reading/claim", json=body).status_code == 404
    )
    file_id = server.upload()
    lease = server.worker.claim_reading(file_id)
    server.user.delete(f"/v1/files/{file_id}")
    assert server.worker.read("renew", file_id, lease).status_code == 404


def test_a_complaint_about_the_whole_file_names_no_row(server: Server) -> None:
    file_id = server.upload()
    problems = [{"row": 0, "message": "the file could not be read: why"}]
    server.validate(file_id, ok=False, problems=problems, num_problems=1)
    file = server.user.json(f"/v1/files/{file_id}")
    assert file["status_details"] == "the file could not be read: why"

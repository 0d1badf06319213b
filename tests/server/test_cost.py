"""Costs that decide how many requests the API serves: statements of a create, validations of a
list."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy.event

from tunesmith_schema.documents import read_document
from tunesmith_server.services.training import job_summaries

from .actors import Server
from .test_page_bounds import copies, reinforcement, usable_file

JOBS = "/v1/fine_tuning/jobs"


def test_a_create_needs_few_statements(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id)
    statements: list[str] = []

    def record(*given: Any) -> None:  # Any: SQLAlchemy's own; the third argument is the statement
        statements.append(given[2].split()[0])

    sqlalchemy.event.listen(server.database.engine, "before_cursor_execute", record)
    try:
        reply = server.create_reply(file_id, headers={"idempotency-key": "k"})
    finally:
        sqlalchemy.event.remove(server.database.engine, "before_cursor_execute", record)
    assert reply.json()["state"] == "queued"
    kinds = {kind: statements.count(kind) for kind in ("SELECT", "INSERT", "UPDATE")}
    # The key, the repeated request, the workers, the file, the limits, the newest entry of the
    # audit log; the job, its events, the request, the new entry. PostgreSQL also needs a lock for
    # the audit log.
    is_postgresql = server.database.engine.dialect.name == "postgresql"
    expected = {"SELECT": 6 + is_postgresql, "INSERT": 4, "UPDATE": 0}
    assert kinds == expected, statements


@pytest.mark.parametrize("method", [None, reinforcement()])
def test_a_list_validates_equal_documents_once(
    server: Server, method: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = server.create_job(usable_file(server), method=method)
    copies(server, job_id, 99)
    server.user.json(JOBS)
    read: list[Any] = []

    def count(*given: Any, **options: Any) -> Any:  # Any: passed on
        read.append(given)
        return read_document(*given, **options)

    monkeypatch.setattr(job_summaries, "read_document", count)
    listed = server.user.json(JOBS, params={"limit": 100})["data"]
    assert len(listed) == 100
    assert {str(job["method"]) for job in listed} == {str(server.job(job_id)["method"])}
    assert len(read) <= 3

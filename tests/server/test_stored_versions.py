"""Jobs as every release stored them, from the first commit of the wire contract to today.

Each file in `stored_rows/` has the documents of a job as the commit in its name wrote them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from tunesmith_schema import Recipe
from tunesmith_schema.documents import DOCUMENT_VERSION
from tunesmith_server.models import JobRow

from .actors import Server

ROWS = Path(__file__).parent / "stored_rows"
FILES = sorted(ROWS.glob("*.json"))
DOCUMENTS = {
    f"{file.stem}-{name}": columns
    for file in FILES
    for name, columns in json.loads(file.read_bytes()).items()
}


def test_there_are_rows_of_every_release() -> None:
    assert len(FILES) >= 9
    assert {name.rpartition("-")[2] for name in DOCUMENTS} >= {"defaults", "full", "reinforcement"}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_stored_job_is_shown_claimed_and_retried(server: Server, name: str) -> None:
    columns: dict[str, Any] = DOCUMENTS[name]
    file_id = server.upload()
    server.validate(file_id, usable_for=["supervised", "reinforcement"])
    job_id = server.create_job(file_id)
    server.change_job(job_id, document_version=1, **columns)
    job = server.job(job_id)
    assert job["error"] is None
    assert set(job["recipe"]) == set(Recipe.model_fields)
    for field in ("tuning", "lora", "learning_rate"):
        stored = columns["recipe"][field]
        assert job["recipe"][field] == (
            stored if not isinstance(stored, dict) else stored | job["recipe"][field]
        )
    claim = server.worker.claim()
    assert claim["job_id"] == job_id
    assert claim["recipe"] == job["recipe"]
    assert (claim["grader"] is not None) == (columns["method"] is not None)
    assert not [m for m in server.messages(job_id) if "another release" in m]
    outcome = {
        "state": "failed",
        "error": {"category": "user", "code": "recipe_invalid", "message": "r"},
    }
    server.worker.report(claim, outcome=outcome)
    assert server.ask(job_id, "retry")["recipe"] == job["recipe"]


def test_the_newest_rows_have_todays_fields() -> None:
    """Add a file to `stored_rows/` when the form of the recipe changes."""
    newest = json.loads(FILES[-1].read_bytes())["defaults"]["recipe"]
    assert set(newest) == set(Recipe().model_dump(mode="json"))


def test_a_new_row_has_the_version_of_this_release(server: Server) -> None:
    server.create_job(server.good_file())
    with server.database.read() as session:
        assert session.scalar(select(JobRow.document_version)) == DOCUMENT_VERSION


def test_a_row_of_a_newer_release_is_read_as_it_is(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, document_version=DOCUMENT_VERSION + 5)
    assert server.job(job_id)["error"] is None
    assert server.worker.claim()["job_id"] == job_id

"""A session of a user's request reads and writes one project only, whatever the query."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy.event
from sqlalchemy import delete, exists, func, select, update
from sqlalchemy.orm import Session, aliased

import tunesmith_server.api
from tunesmith_server.core.database import Base, Database
from tunesmith_server.core.principal import ProjectLimits
from tunesmith_server.models import AdapterRow, FileRow, JobRow, Owned, ResumePointRow, scope

from .actors import Server
from .teams import caller, two_teams

ONE = ProjectLimits(project_id="proj-1")

NOT_OWNED = {
    "api_keys": "only the organization's routes show keys, by the project in the path",
    "audit_log": "only a command on the server's host shows it",
    "blobs": "content, which rows of several projects may share",
    "installation": "one row",
    "janitor": "one row",
    "job_curves": "read by the job's id, after the job was found in the project",
    "job_metrics": "read by the job's id, after the job was found in the project",
    "job_reports": "read by the job's id, after the job was found in the project",
    "job_samples": "read by the job's id, after the job was found in the project",
    "file_stats": "read by the file's id, after the file was found in the project",
    "idle_days": "idle time of workers, which serve all projects",
    "model_permissions": "read by the model's name, after the model was found in the project",
    "project_members": "only the organization's routes show members, by the project in the path",
    "projects": "only the organization's routes show projects",
    "reservations": "of workers, which serve all projects",
    "resume_points": "read by the job's id, after the job was found in the project",
    "sessions": "found by the hash of a secret, before the project is known",
    "upload_parts": "read by the upload's id, after the upload was found in the project",
    "usage_days": "the report selects the caller's project; only an admin sees all",
    "users": "only the organization's routes show users",
    "worker_credentials": "workers serve all projects",
    "workers": "workers serve all projects",
}
"""Tables without a project, each with the reason."""

OWNED = {entity.__tablename__ for entity in Owned.__subclasses__()}  # type: ignore[attr-defined]  # each is a table


def test_every_table_has_a_project_or_a_reason() -> None:
    assert {*Base.metadata.tables} - OWNED == NOT_OWNED.keys()
    assert {"files", "uploads", "jobs", "adapters", "checkpoints", "job_events"} <= OWNED


QUERIES = {
    "columns": select(JobRow.id),
    "count": select(func.count()).select_from(JobRow),
    "alias": select(aliased(JobRow).id),
    "exists": select(exists().where(JobRow.training_file == "file-1")),
    "subquery": select(ResumePointRow.step).where(ResumePointRow.job_id.in_(select(JobRow.id))),
    "correlated": select(FileRow).where(exists().where(JobRow.training_file == FileRow.id)),
}


def test_a_statement_of_any_form_is_limited(database_url: str) -> None:
    for name, query in QUERIES.items():

        def read(session: Session, query: Any = query) -> None:
            session.execute(query).all()

        assert limited_statements(database_url, read), name

    def write(session: Session) -> None:
        session.get(FileRow, "file-1", with_for_update=True)
        session.execute(update(JobRow).where(JobRow.id == "1").values(state="queued"))
        session.execute(delete(FileRow).where(FileRow.id == "1"))

    assert limited_statements(database_url, write)


def test_a_shared_model_is_read_and_never_written(database_url: str) -> None:
    def act(session: Session) -> None:
        session.execute(select(AdapterRow.id)).all()
        session.execute(update(AdapterRow).where(AdapterRow.id == "1").values(step=1))
        session.execute(delete(AdapterRow).where(AdapterRow.id == "1"))

    seen = statements_in_one_project(database_url, act)
    shared = {text.split()[0]: "model_permissions" in text for text in seen if "adapters" in text}
    assert shared == {"SELECT": True, "UPDATE": False, "DELETE": False}


def limited_statements(url: str, action: Any) -> bool:  # Any: a function of a session
    """Run `action` in a limited session; return True if all statements name the project."""
    seen = statements_in_one_project(url, action)
    statements = [text for text in seen if re.search(r"\b(jobs|files)\b", text)]
    return bool(statements) and all("project_id = " in text for text in statements)


def statements_in_one_project(url: str, action: Any) -> list[str]:  # Any: as above
    """Run `action` in a limited session and return its SQL."""
    database, seen = Database(url), list[str]()
    sqlalchemy.event.listen(
        database.engine, "before_cursor_execute", lambda *given: seen.append(str(given[2]))
    )
    with scope.limit(database.write(), ONE) as session, session.begin():
        action(session)
    database.dispose()
    return seen


def test_a_new_row_gets_the_project_of_its_session(server: Server) -> None:
    row = FileRow(
        id="file-1", created_at=1.0, filename="f", purpose="p", bytes=1, sha256="0", status="s"
    )
    with scope.limit(server.database.write(), ONE) as session, session.begin():
        session.add(row)
    assert row.project_id == "proj-1"


def test_a_row_without_a_project_or_of_another_project_is_refused(server: Server) -> None:
    row = {"created_at": 1.0, "filename": "f", "purpose": "p", "bytes": 1, "sha256": "0"}
    with server.database.write() as session:
        session.add(FileRow(id="file-1", status="s", **row))
        with pytest.raises(RuntimeError, match="FileRow"):
            session.flush()
    with scope.limit(server.database.write(), ONE) as session:
        session.add(FileRow(id="file-2", status="s", project_id="proj-2", **row))
        with pytest.raises(RuntimeError, match="proj-2"):
            session.flush()


def test_requests_of_users_read_owned_rows_of_one_project_only(server: Server) -> None:
    """Every SELECT of a request names the project, or is marked with `all_projects`."""
    _, own, _ = two_teams(server)
    lead, bare = caller(server, "lead"), []

    def look(*given: Any) -> None:  # Any: SQLAlchemy's own
        text, context = str(given[2]), given[4]
        tables = set(re.findall(r"(?:FROM|JOIN) (\w+)", text))
        marked = context and context.execution_options.get("all_projects")
        if text.startswith("SELECT") and tables & OWNED and "project_id = " not in text:
            bare.append((marked, text))

    sqlalchemy.event.listen(server.database.engine, "before_cursor_execute", look)
    jobs = "/v1/fine_tuning/jobs"
    waiting = own.server.create_reply(own.file_id).json()["id"]
    for path in (
        *("/v1/files", "/v1/models", jobs, f"{jobs}?text=a", f"/v1/uploads/{own.upload_id}"),
        *(f"/v1/files/{own.file_id}", f"{jobs}/{own.job_id}", f"{jobs}/{waiting}"),
        *(f"{jobs}/{own.job_id}/{part}" for part in ("events", "checkpoints", "metrics")),
        f"/v1/adapters/{own.adapter_id}",
    ):
        assert lead.get(path).status_code == 200, path
    for path in (f"{jobs}/{waiting}", f"/v1/models/{own.model}", f"{jobs}/{own.job_id}"):
        lead.post(f"{path}/cancel")
        assert lead.delete(path).status_code == 200, path
    assert [text for marked, text in bare if not marked] == []
    assert [text for marked, text in bare if marked], "the queue's position reads all projects"


ROUTES_WITHOUT_A_PROJECT = {
    "blobs.py": "rows of stored content",
    "deps.py": "the limited sessions themselves, and the check of keys",
    "health.py": "no user",
    "internal.py": "workers serve all projects",
    "progress_feed.py": "names the project in each query",
    "stream.py": "follows jobs that the route has found in the project",
}


def test_routes_of_users_open_limited_sessions_only() -> None:
    found = {
        path.name
        for path in Path(tunesmith_server.api.__path__[0]).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in ("read", "write")
        and ast.unparse(node.value).endswith("database")
    }
    assert found <= ROUTES_WITHOUT_A_PROJECT.keys()


def test_services_open_no_sessions() -> None:
    """A service gets its session, with the scope, from the route."""
    package = Path(tunesmith_server.api.__path__[0]).parent
    for folder in ("services", "identity"):
        for path in (package / folder).rglob("*.py"):
            calls = [
                ast.unparse(node.func)
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call)
            ]
            opened = [
                call for call in calls
                if call in ("Session", "Database", "sessionmaker") or call.endswith("write.begin")
            ]  # fmt: skip
            assert opened == [], path.name

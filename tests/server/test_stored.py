"""`GET /v1/organization/storage`: stored bytes by kind and project, disk, and janitor's runs."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event, update
from sqlalchemy.exc import OperationalError
from typer.testing import CliRunner

from tunesmith import Client
from tunesmith.cli import app
from tunesmith_server.core.storage import Storage
from tunesmith_server.janitor import Janitor
from tunesmith_server.models import DEFAULT_PROJECT, BlobRow, JanitorRow, UploadRow
from tunesmith_server.services import quotas, stored

from .actors import Server
from .callers import Caller
from .live import listening
from .teams import caller, two_teams
from .test_uploads import filled

STORAGE = "/v1/organization/storage"
NO_GRACE = timedelta(seconds=-5)


@pytest.fixture
def admin(server: Server) -> Caller:
    return caller(server, "admin")


def report(admin: Caller) -> dict[str, Any]:
    found: dict[str, Any] = admin.json(STORAGE)
    return found


def test_the_report_sums_each_kind_and_each_project(server: Server, admin: Caller) -> None:
    _, one, two = two_teams(server)
    two.server.upload(b'{"prompt": "a long", "completion": "file"}\n' * 50)
    found = report(admin)
    kinds = ("files", "uploads", "models", "resume_points", "samples")
    by_id = {project["id"]: project for project in found["projects"]}
    with server.database.read() as session:
        for team in (one, two):
            sizes = by_id[team.project_id]["stored"]
            assert sizes["total"] == quotas.stored_bytes(session, team.project_id)
            assert sizes["total"] == sum(sizes[kind] for kind in kinds)
            assert min(sizes["files"], sizes["models"], sizes["uploads"]) > 0
    for kind in (*kinds, "total"):
        assert found["stored"][kind] == sum(project["stored"][kind] for project in by_id.values())
    totals = [project["stored"]["total"] for project in found["projects"]]
    assert totals == sorted(totals, reverse=True)
    assert found["content_bytes"] > 0


def test_each_kind_counts_only_its_own_bytes(server: Server, admin: Caller) -> None:
    before = report(admin)["stored"]
    server.upload(b"x" * 1000)
    after = report(admin)["stored"]
    assert (after["files"] - before["files"], after["total"] - before["total"]) == (1000, 1000)
    server.create_job(server.good_file())
    server.worker.succeed(server.worker.claim())
    trained = report(admin)["stored"]
    assert trained["models"] > 0 == before["models"]
    assert trained["resume_points"] == trained["samples"] == 0


def test_the_report_names_projects_and_leaves_out_the_rest(
    server: Server, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_teams(server)
    whole = report(admin)
    monkeypatch.setattr(stored, "_MOST_PROJECTS", 1)
    short = report(admin)
    assert len(whole["projects"]) == 2
    assert short["projects"] == whole["projects"][:1]
    assert short["stored"] == whole["stored"], "the sums have all projects"


def test_the_number_of_queries_does_not_grow_with_the_rows(server: Server, admin: Caller) -> None:
    statements: list[str] = []

    def count(*args: Any) -> None:
        statements.append(args[2])

    def queries() -> int:
        statements.clear()
        with server.database.read() as session:
            stored.report(session, server.storage, server.settings)
        return len(statements)

    event.listen(server.database.engine, "before_cursor_execute", count)
    server.upload()
    few = queries()
    two_teams(server)
    for number in range(20):
        server.upload(f"{number}\n".encode())
    assert queries() == few <= 9


def test_the_disk_is_that_of_the_directory_without_its_path(server: Server, admin: Caller) -> None:
    found = admin.get(STORAGE)
    document = found.json()
    assert document["kind"] == "directory"
    assert 0 < document["free_bytes"] <= document["disk_bytes"]
    assert str(server.settings.data_dir) not in found.text


def test_a_bucket_has_no_disk(server: Server) -> None:
    bucket = Storage("memory:///")
    assert (bucket.is_local, bucket.disk()) == (False, None)


def test_a_disk_that_does_not_answer_is_unknown(
    server: Server, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: object) -> None:
        raise OSError("stale file handle")

    monkeypatch.setattr("tunesmith_server.core.local_store.shutil.disk_usage", fail)
    assert (report(admin)["free_bytes"], report(admin)["disk_bytes"]) == (None, None)


def test_only_admins_see_the_report(server: Server) -> None:
    for role in ("viewer", "member", "lead"):
        assert caller(server, role).get(STORAGE).status_code == 403


def test_the_janitor_has_not_run_before_its_first_round(admin: Caller) -> None:
    janitor = report(admin)["janitor"]
    for name in ("round_at", "round_seconds", "sweep_at", "next_sweep_at", "removed_at", "error"):
        assert janitor[name] is None
    assert (janitor["removed_objects"], janitor["removed_bytes"]) == (0, 0)


def test_a_round_records_its_time_at_most_once_a_minute(server: Server, admin: Caller) -> None:
    janitor, before = server.janitor(), int(time.time())
    janitor.round()
    first = report(admin)["janitor"]
    assert before <= first["round_at"] <= time.time()
    assert 0 <= first["round_seconds"] < 60
    assert first["sweep_at"] is None
    assert 3500 < first["next_sweep_at"] - time.time() <= 3600
    assert first["every_seconds"] == server.settings.janitor_seconds
    with server.database.write.begin() as session:
        session.execute(update(JanitorRow).values(round_at=1.0))
    janitor.round()
    assert report(admin)["janitor"]["round_at"] == 1, "nothing happened"
    janitor._next_record = 0.0
    janitor.round()
    assert report(admin)["janitor"]["round_at"] >= before


def test_a_sweep_records_what_it_deleted(server: Server, admin: Caller) -> None:
    server.user.delete(f"/v1/files/{server.upload(b'x' * 700)}")
    janitor = server.janitor()
    assert janitor.sweep(NO_GRACE) == 1
    first = report(admin)["janitor"]
    assert (first["removed_objects"], first["removed_bytes"]) == (1, 700)
    assert first["sweep_at"] <= first["removed_at"] <= time.time()
    assert janitor.sweep(NO_GRACE) == 0
    assert report(admin)["janitor"]["removed_bytes"] == 700, "an empty sweep keeps the last"


def test_a_round_records_deleted_parts(server: Server, admin: Caller) -> None:
    upload_id, _ = filled(server)
    with server.database.read() as session:
        part_bytes = sum(row.bytes for row in session.query(BlobRow) if row.name[:5] == "part-")
    server.user.post(f"/v1/uploads/{upload_id}/cancel")
    janitor = server.janitor()
    janitor.round()
    found = report(admin)["janitor"]
    assert found["removed_objects"] > 0
    assert found["removed_bytes"] == part_bytes > 0


def test_the_last_error_has_no_details_of_the_host(
    server: Server, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: object) -> None:
        raise OSError("/secret/path: disk full")

    monkeypatch.setattr("tunesmith_server.janitor.files.delete_expired", fail)
    janitor = server.janitor()
    janitor.round()
    first = report(admin)["janitor"]
    assert first["error"] == "could not delete expired files: OSError"
    assert first["error_at"] <= time.time()
    monkeypatch.undo()
    janitor._next_record = 0.0
    janitor.round()
    assert report(admin)["janitor"]["error"] == first["error"], "the last error stays"


def test_a_failed_sweep_is_recorded_and_raised(
    server: Server, admin: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("store away")

    monkeypatch.setattr("tunesmith_server.janitor.garbage.collect", fail)
    with pytest.raises(RuntimeError, match="store away"):
        server.janitor().sweep()
    assert report(admin)["janitor"]["error"] == "could not complete the sweep: RuntimeError"


def test_a_record_that_fails_does_not_end_the_round(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*args: object) -> None:
        raise OperationalError("INSERT", {}, RuntimeError("no such table"))

    monkeypatch.setattr("tunesmith_server.services.janitor_runs.store", fail)
    server.janitor().round()
    assert "could not store its last round" in caplog.text


def test_several_janitors_share_one_row(server: Server, admin: Caller) -> None:
    janitors: list[Janitor] = [server.janitor() for _ in range(4)]
    threads = [threading.Thread(target=janitor.round) for janitor in janitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    with server.database.read() as session:
        assert session.query(JanitorRow).count() == 1
    assert report(admin)["janitor"]["error"] is None


def test_sdk_and_command_show_the_report(server: Server, admin: Caller) -> None:
    server.upload(b"x" * 2048)
    server.janitor().round()
    key = admin.headers["authorization"].removeprefix("Bearer ")
    with listening(server.app) as address, Client(f"{address}/v1", key) as client:
        found = client.admin.organization.storage.retrieve()
        options = ["--base-url", f"{address}/v1", "--api-key", key, "storage"]
        shown, as_json = (
            CliRunner().invoke(app, [*options, *more], env={"COLUMNS": "120"})
            for more in ([], ["--json"])
        )
    assert found.stored.files == 2048
    assert found.projects[0].id == DEFAULT_PROJECT
    assert shown.exit_code == as_json.exit_code == 0, shown.output
    assert '"kind":"directory"' in as_json.output.replace(" ", "")
    words = " ".join(shown.output.split())
    assert "store directory" in words
    assert "last round" in words
    assert "next sweep by" in words
    assert "all 2.0 KiB 0 B 0 B 0 B 0 B 2.0 KiB" in words


def test_a_closed_upload_counts_no_longer(server: Server, admin: Caller) -> None:
    filled(server)
    assert report(admin)["stored"]["uploads"] > 0
    with server.database.write.begin() as session:
        session.execute(update(UploadRow).values(status="cancelled"))
    assert report(admin)["stored"]["uploads"] == 0

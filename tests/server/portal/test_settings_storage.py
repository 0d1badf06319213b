"""Cards of the settings page for admins: storage, and the janitor."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from tunesmith_server.models import ProjectRow
from tunesmith_server.portal.view import UNKNOWN
from tunesmith_server.services import janitor_runs

from ..actors import Server
from ..teams import caller
from .browser import signed_in
from .page_checks import Document, check_page

SETTINGS = "/portal/settings"


def shown(server: Server) -> Document:
    return check_page(signed_in(server, caller(server, "admin")).page(SETTINGS))


def text(document: Document) -> str:
    return " ".join(document.all("main")[0].text.split())


def test_an_admin_sees_stored_bytes_by_project(server: Server) -> None:
    server.upload(b"x" * 3072)
    with server.database.write.begin() as session:
        session.execute(update(ProjectRow).values(name="<b>Lab</b>"))
    found = text(shown(server))
    assert "StoreLocal directory" in found
    assert "In the store3.0 KiB" in found
    assert "Free on its disk" in found
    sizes = "".join(["3.0 KiB", *["0 B"] * 4, "3.0 KiB"])
    assert f"<b>Lab</b>{sizes}" in found.replace("\n", "").replace("> ", ">")
    assert f"All projects{sizes}" in found


def test_before_the_first_round_times_are_unknown(server: Server) -> None:
    found = text(shown(server))
    assert f"Last round{UNKNOWN}" in found
    assert f"Next sweep{UNKNOWN}" in found
    assert "Last deletednothing yet" in found
    assert "Last error" not in found


def test_an_admin_sees_what_the_janitor_did(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.user.delete(f"/v1/files/{server.upload(b'x' * 1024)}")
    janitor = server.janitor()
    janitor.sweep(timedelta(seconds=-5))

    def fail(session: object) -> None:
        raise OSError("/secret/path: disk full")

    monkeypatch.setattr("tunesmith_server.janitor.files.delete_expired", fail)
    janitor.round()
    found = text(shown(server))
    assert "Last roundjust now, took" in found
    assert "Last sweepjust now, took" in found
    assert "Next sweepin 59 min" in found
    assert "Last deleted1 object, 1.0 KiB, just now" in found
    assert "Last error, just now: could not delete expired files: OSError." in found
    assert "/secret" not in found


def test_an_error_before_the_last_sweep_is_no_alarm(server: Server) -> None:
    failed = janitor_runs.Run("sweep", started_at=100.0, error="could not complete the sweep")
    with server.database.write.begin() as session:
        janitor_runs.store(session, failed, 0.1, 1.0)
    assert _tone(shown(server)) == "callout is-bad"
    with server.database.write.begin() as session:
        janitor_runs.store(session, janitor_runs.Run("sweep", started_at=200.0), 0.1, 1.0)
    assert _tone(shown(server)) == "callout"


def _tone(document: Document) -> str:
    [line] = [item for item in document.all("p") if item.text.startswith("Last error")]
    return line.attributes["class"]


def test_the_page_hides_the_card_from_other_roles(server: Server) -> None:
    for role in ("viewer", "member", "lead"):
        page = signed_in(server, caller(server, role)).page(SETTINGS)
        assert "Free on its disk" not in page
        assert "Janitor" not in page
        assert "organization/storage" not in page


def test_hostile_texts_are_inert(server: Server) -> None:
    run = janitor_runs.Run("round", error="<script>x</script>")
    with server.database.write.begin() as session:
        janitor_runs.store(session, run, 0.1, 1.0)
        session.execute(update(ProjectRow).values(name="<img src=x>"))
    document = shown(server)
    assert "<script>x</script>" in text(document)
    assert not document.all("img")

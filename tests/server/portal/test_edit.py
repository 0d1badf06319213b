"""Form that changes name, notes and pin of a job, and where the portal shows them."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import select

from tunesmith_schema import JobPatch
from tunesmith_server.models import AuditRow
from tunesmith_server.portal import text
from tunesmith_server.services.training import job_edit

from ..actors import Server
from ..teams import caller
from .browser import Browser, signed_in
from .hostile import TEXTS
from .page_checks import Document, check_page

PART = {"hx-request": "true"}


def form_of(browser: Browser, job_id: str) -> dict[str, str]:
    """Return the fields of the form as a browser sends them, without the submit buttons."""
    document = check_page(browser.page(f"/portal/jobs/{job_id}/edit"))
    inputs = {
        item.attributes["name"]: item.attributes["value"]
        for item in document.all("input")
        if item.attributes.get("name") in ("name", "name_mark", "notes_mark")
    }
    [notes] = document.all("textarea")
    plain = {name: re.sub(r"[\r\n]", "", value or "") for name, value in inputs.items() if name}
    return plain | {"notes": notes.text.removeprefix("\n")}


def save(browser: Browser, job_id: str, form: dict[str, str]) -> None:
    reply = browser.post(f"/portal/jobs/{job_id}/edit", data=form)
    assert (reply.status_code, reply.headers["location"]) == (303, f"/portal/jobs/{job_id}")


def stored(server: Server, job_id: str) -> tuple[str | None, str | None, bool]:
    job = server.user.json(f"/v1/fine_tuning/jobs/{job_id}")
    return job["name"], job["notes"], job["pinned"]


def test_a_member_changes_name_notes_and_pin(server: Server) -> None:
    job_id = server.create_job(server.good_file(), suffix="first")
    browser = signed_in(server, caller(server, "member"))
    page = check_page(browser.page(f"/portal/jobs/{job_id}"))
    [edit] = [item for item in page.all("a") if item.text == "Edit"]
    assert edit.attributes["hx-get"] == edit.attributes["href"] == f"/portal/jobs/{job_id}/edit"
    assert edit.attributes["data-key"] == "n"
    assert "Edit name, notes and pin" in page.with_id("page-keys").text
    assert "Pinned" not in page.with_id("head").text
    form = form_of(browser, job_id)
    save(browser, job_id, form | {"name": " slower ", "notes": "a\r\n\r\nb ", "pinned": "true"})
    assert stored(server, job_id) == ("slower", "a\n\nb", True)
    head = check_page(browser.page(f"/portal/jobs/{job_id}")).with_id("head")
    assert "slower" in head.text
    assert "a\n\nb" in head.text
    assert "Pinned" in head.text
    row = check_page(browser.page("/portal/jobs")).with_id(f"row-{job_id}")
    assert "Pinned" in row.text
    with server.database.read() as session:
        actions = list(session.scalars(select(AuditRow.action)))
    assert actions.count("PATCH /fine_tuning/jobs/{job_id}") == 1, "opening the form is no change"
    save(browser, job_id, form_of(browser, job_id) | {"name": "", "notes": " ", "pinned": "false"})
    assert stored(server, job_id) == (None, None, False)


def test_a_form_without_changes_changes_nothing(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    browser = signed_in(server)
    hidden = [item.replace("\0", "")[:200] for item in TEXTS if text.HIDDEN.search(item)]
    for name in (*hidden, "two\nlines", "a\r\nb"):
        server.change_job(job_id, name=name, notes=f"{name}\r\n{name}")
        save(browser, job_id, form_of(browser, job_id))
        assert stored(server, job_id)[:2] == (name, f"{name}\r\n{name}"), repr(name)
        save(browser, job_id, {"pinned": "true"})
        assert stored(server, job_id) == (name, f"{name}\r\n{name}", True), repr(name)


def test_a_text_that_another_user_changed_is_kept(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    browser = signed_in(server)
    form = form_of(browser, job_id)
    server.change_job(job_id, notes="theirs")
    save(browser, job_id, form | {"name": "mine"})
    assert stored(server, job_id) == ("mine", "theirs", False)
    headers = {"sec-fetch-site": "same-origin", "hx-request": "form"}
    data = form | {"name": "mine", "notes": "mine", "pinned": "true"}
    refused = browser.post(f"/portal/jobs/{job_id}/edit", data=data, headers=headers)
    assert refused.status_code == 400
    assert 'class="failed is-bad"' in refused.text
    said = "".join(item.text for item in Document(refused.text).all("div"))
    assert "Another user changed the notes" in said
    assert "open the form again" in said
    assert stored(server, job_id) == ("mine", "theirs", False)


def test_of_two_changes_at_the_same_time_the_second_is_refused(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    browser = signed_in(server)
    form = form_of(browser, job_id) | {"notes": "mine"}
    with ThreadPoolExecutor(1) as pool:
        with server.user_session() as session, session.begin():
            job_edit.edit(session, job_id, JobPatch(notes="theirs"))
            saving = pool.submit(browser.post, f"/portal/jobs/{job_id}/edit", data=form)
            time.sleep(0.2)
        assert saving.result(timeout=20).status_code == 400
    assert stored(server, job_id)[1] == "theirs"


def test_a_text_that_is_too_long_is_refused(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    browser = signed_in(server)
    for field, length in (("name", 201), ("notes", 10_001)):
        refused = browser.post(f"/portal/jobs/{job_id}/edit", data={field: "x" * length})
        assert refused.status_code == 400, field
        assert "at most 200 characters" in check_page(refused.text).all("main")[0].text
        save(browser, job_id, {field: "x" * (length - 1)})
    assert stored(server, job_id)[:2] == ("x" * 200, "x" * 10_000)


def test_a_viewer_reads_the_notes_and_edits_nothing(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, name="named", notes="read me", pinned=True)
    viewer = signed_in(server, caller(server, "viewer"))
    page = check_page(viewer.page(f"/portal/jobs/{job_id}"))
    assert "read me" in page.with_id("head").text
    assert "Edit" not in [item.text for item in page.all("a", "button")]
    for reply in (
        viewer.get(f"/portal/jobs/{job_id}/edit"),
        viewer.post(f"/portal/jobs/{job_id}/edit", data={"name": "theirs"}),
    ):
        assert reply.status_code == 403
        assert "you may not edit jobs" in check_page(reply.text).all("main")[0].text
    assert stored(server, job_id) == ("named", "read me", True)


def test_the_page_of_a_job_adds_an_action_to_the_palette(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    here = f"http://testserver/portal/jobs/{job_id}?x=1-2"
    viewer = signed_in(server, caller(server, "viewer"))
    for browser, address, found in (
        (signed_in(server), here, [f"/portal/jobs/{job_id}/edit"]),
        (signed_in(server), "http://testserver/portal/jobs", []),
        (signed_in(server), f"javascript:alert(1)//{here}", []),
        (viewer, here, []),
    ):
        reply = browser.get("/portal/find?q=edit+name", headers={**PART, "hx-current-url": address})
        assert [item.attributes["href"] for item in Document(reply.text).all("a")] == found


def test_hostile_names_and_notes_are_inert_and_shown_whole(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    browser = signed_in(server)
    for hostile in TEXTS:
        note = hostile.replace("\0", "")[:10_000].strip()
        save(browser, job_id, {"name": hostile[:200], "notes": hostile[:10_000]})
        name, notes, _ = stored(server, job_id)
        assert notes == (note.replace("\r", "") or None), repr(hostile)
        page, part = browser.page(f"/portal/jobs/{job_id}/edit"), f"/portal/jobs/{job_id}/edit"
        for shown in (page, browser.get(part, headers=PART).text):
            document = Document(shown)
            assert not document.all("iframe", "base", "style", "object", "template", "img")
            assert not text.HIDDEN.search("".join(item.text for item in document.all("form")))
            [area] = document.all("textarea")
            assert area.text.removeprefix("\n") == text.visible(notes or ""), repr(hostile)
            [field] = [item for item in document.all("input") if item.attributes["name"] == "name"]
            assert field.attributes["value"] == text.visible(name or "")
        head = Document(browser.page(f"/portal/jobs/{job_id}")).with_id("head")
        assert text.visible(notes or "") in head.text


def test_the_form_shows_the_same_as_a_command(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    server.change_job(job_id, name="it's", notes=None)
    texts = [item.text for item in check_page(
        signed_in(server).page(f"/portal/jobs/{job_id}/edit")
    ).all("pre")]  # fmt: skip
    assert len(texts) == 3
    assert texts[0].startswith("tunesmith jobs edit")
    assert """--name 'it'"'"'s' \\\n  --notes ''""" in texts[0]
    assert """name="it's",\n    notes=None,""" in texts[1]
    assert texts[2].startswith("curl -X PATCH http://testserver/v1/fine_tuning/jobs/")

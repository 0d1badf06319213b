"""Home after an absence: what ended, failed and warned, once and only of the own project."""

from __future__ import annotations

import re
import time

import pytest
from sqlalchemy import update

from tunesmith_server.models import JobRow
from tunesmith_server.portal import cookies
from tunesmith_server.services.training import events

from ..actors import Server
from ..teams import caller, new_project
from .browser import Browser, signed_in
from .page_checks import Document, check_page

COOKIE = "tunesmith_visit"
HOUR = 3600


def end(server: Server, name: str, state: str, ago: float) -> str:
    job_id = server.create_job(server.good_file(), suffix=name)
    error = {"category": "user", "code": "recipe_invalid", "message": f"{name} has <b>no</b> rate"}
    ended = {"state": state, "finished_at": time.time() - ago, "created_at": time.time() - 9e5}
    with server.user_session() as session, session.begin():
        values = ended | ({"error": error} if state == "failed" else {})
        session.execute(update(JobRow).where(JobRow.id == job_id).values(values))
    return job_id


def warn(server: Server, job_id: str, ago: float, message: str) -> None:
    with server.user_session() as session, session.begin():
        job = session.get_one(JobRow, job_id)
        events.add(session, job, message, level="warn", created_at=time.time() - ago)


def returned(server: Server, seen: float) -> Browser:
    """Return a browser that opened home `seen` seconds ago."""
    browser = signed_in(server)
    set_visit(browser, seen)
    return browser


def set_visit(browser: Browser, seen: float) -> None:
    value = f"{int(time.time() - seen)}.0"
    browser._client.cookies.set(COOKIE, value, domain="testserver.local", path="/portal")


def away_part(browser: Browser) -> str:
    """Return the text of the part; empty if home has none."""
    page = check_page(browser.page("/portal"))
    found = [item for item in page.all("section") if item.attributes["aria-labelledby"] == "away"]
    return re.sub(r"\s+", " ", found[0].text) if found else ""


def test_home_says_what_happened_while_the_browser_was_away(server: Server) -> None:
    end(server, "before", "succeeded", 3 * HOUR)
    end(server, "good", "succeeded", HOUR)
    end(server, "broken", "failed", HOUR)
    end(server, "stopped", "cancelled", HOUR)
    calm, loud = (server.create_job(server.good_file(), suffix=name) for name in ("calm", "loud"))
    warn(server, loud, HOUR, "the loss is <i>NaN</i>")
    warn(server, calm, 3 * HOUR, "an old warning")
    text = away_part(returned(server, 2 * HOUR))
    assert "1 failed, 2 ended, 1 warned since" in text
    assert [text.index(name) for name in ("broken", "loud", "good")] == sorted(
        text.index(name) for name in ("broken", "loud", "good")
    )
    assert "Broken has <b>no</b> rate." in text
    assert "The loss is <i>NaN</i>." in text
    assert "before" not in text
    assert "calm" not in text


def test_the_part_stays_until_it_is_dismissed(server: Server) -> None:
    end(server, "good", "succeeded", HOUR)
    browser = returned(server, 2 * HOUR)
    assert "good" in away_part(browser)
    assert "good" in away_part(browser)  # as home asks again every 10 s
    assert browser.post("/portal/back").headers["location"] == "/portal"
    assert away_part(browser) == ""
    assert browser.post("/portal/sign-out").status_code == 303
    assert browser.sign_in(server.user).status_code == 303
    assert away_part(browser) == ""


@pytest.mark.parametrize("seen", [0.0, 60.0, 14 * 60.0])
def test_a_short_absence_shows_nothing(server: Server, seen: float) -> None:
    end(server, "good", "succeeded", 30)
    assert away_part(returned(server, seen)) == ""


def test_a_first_visit_and_a_quiet_absence_show_nothing(server: Server) -> None:
    end(server, "good", "succeeded", 3 * HOUR)
    assert away_part(signed_in(server)) == ""
    assert away_part(returned(server, HOUR)) == ""


def test_a_long_absence_shows_the_last_week(server: Server) -> None:
    end(server, "old", "succeeded", 8 * 24 * HOUR)
    end(server, "new", "succeeded", 6 * 24 * HOUR)
    text = away_part(returned(server, 20 * 24 * HOUR))
    assert "new" in text
    assert "old" not in text


def test_more_jobs_than_the_part_shows_are_linked(server: Server) -> None:
    for number in range(9):
        end(server, f"run{number}", "succeeded", HOUR)
    page = Document(returned(server, 2 * HOUR).page("/portal"))
    [section] = [
        item for item in page.all("section") if item.attributes["aria-labelledby"] == "away"
    ]
    assert "at least 8 ended" in section.text
    assert "All jobs" in section.text


def test_another_project_sees_nothing(server: Server) -> None:
    end(server, "good", "succeeded", HOUR)
    other = caller(server, "member", new_project(caller(server, "admin")))
    browser = signed_in(server, other)
    set_visit(browser, 2 * HOUR)
    assert away_part(browser) == ""


@pytest.mark.parametrize("value", ["", "1", "x.y", "-1.0", "9" * 40 + ".0", "1.2.3", "¹.0"])
def test_a_broken_cookie_is_a_first_visit(value: str) -> None:
    request = type("Asked", (), {"cookies": {COOKIE: value}})
    assert cookies.home_visit(request) == (0, 0)  # type: ignore[arg-type]  # only its cookies

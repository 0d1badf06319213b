"""Home, workers and the office screen: empty, filled, without rights, and other projects' jobs."""

from __future__ import annotations

import csv
import io
import re
import time

from sqlalchemy import update

from tunesmith_server.models import JobRow
from tunesmith_server.portal import view

from ..actors import Server
from ..teams import caller, new_project
from ..test_isolation import statements_of
from .browser import Browser, signed_in
from .page_checks import check_links, check_page

PAGES = ("/portal", "/portal/workers", "/portal/screen")
TO_COME = ("/portal/jobs/",)


def _text(browser: Browser, path: str) -> str:
    return re.sub(r"\s+", " ", check_page(browser.page(path)).all("main")[0].text)


def test_an_empty_service_shows_first_steps_and_says_what_is_missing(server: Server) -> None:
    browser = signed_in(server)
    home, workers, screen = [_text(browser, path) for path in PAGES]
    assert "1. Upload examples" in home
    assert "No job runs now." in home
    assert "No worker has reported in the last day" in workers
    assert "No job waits" in workers
    assert "No job has ended yet." in screen


def test_pages_show_what_runs_what_waits_and_why(server: Server) -> None:
    file_id = server.good_file()
    server.create_job(file_id, suffix="runs")
    server.worker.claim()
    server.create_job(file_id, suffix="waits")
    browser = signed_in(server)
    home, workers, screen = [_text(browser, path) for path in PAGES]
    assert "1. Upload examples" not in home
    assert all("runs" in page for page in (home, workers, screen))
    assert "is busy" in workers  # the reason of the job that waits
    assert "waits" in screen
    for path in PAGES:
        check_links(browser, check_page(browser.page(path)), TO_COME)


def test_a_running_job_has_its_new_name_and_its_owner(server: Server) -> None:
    job_id = server.create_job(server.good_file(), suffix="before")
    server.worker.claim()
    renamed = server.user.send("PATCH", f"/v1/fine_tuning/jobs/{job_id}", json={"name": "after"})
    assert renamed.is_success
    owner = server.user.get(f"/v1/fine_tuning/jobs/{job_id}").json()["owner"]
    browser = signed_in(server)
    home, workers, screen = [_text(browser, path) for path in PAGES]
    assert all("after" in page and "before" not in page for page in (home, workers, screen))
    assert f"after {owner}" in workers
    assert f"{owner}, on " in screen


def test_the_number_of_queries_does_not_grow_with_devices_and_jobs(server: Server) -> None:
    file_id = server.good_file()
    browser = signed_in(server)
    statements = statements_of(server)

    def queries(path: str) -> int:
        counts = []
        for _ in range(3):  # some requests read the queue again
            statements.clear()
            browser.page(path)
            counts.append(len(statements))
        return min(counts)

    found = []
    for jobs in (2, 6):
        names = [f"{jobs}-{number}" for number in range(jobs)]
        for name in names:
            server.create_job(file_id, suffix=f"runs-{name}")
            server.worker.claim(f"worker-{name}")
        for name in names:
            server.create_job(file_id, suffix=f"waits-{name}")
        found.append({path: queries(path) for path in PAGES})
        assert all(f"-{name}" in _text(browser, PAGES[1]) for name in names)
    assert found[0] == found[1]


def test_devices_and_the_queue_are_tables_for_spreadsheets(server: Server) -> None:
    file_id = server.good_file()
    first, second = [server.create_job(file_id, suffix=name) for name in ("=runs", "waits")]
    server.worker.claim()
    browser = signed_in(server)
    [device] = csv.DictReader(io.StringIO(browser.get("/portal/workers.csv").text))
    assert (device["worker"], device["state"]) == (server.worker.name, "busy")
    assert (device["job"], device["name"]) == (first, "'=runs")
    [waiting] = csv.DictReader(io.StringIO(browser.get("/portal/workers/queue.csv").text))
    assert (waiting["place"], waiting["job"], waiting["name"]) == ("1", second, "waits")
    assert "is busy" in waiting["reason"]
    links = [item.attributes["href"] for item in check_page(browser.page(PAGES[1])).all("a")]
    assert {"/portal/workers.csv", "/portal/workers/queue.csv"} <= set(links)


def test_settings_show_the_versions_of_the_workers(server: Server) -> None:
    browser = signed_in(server)
    assert "Workersnone in the last day" in _text(browser, "/portal/settings")
    for name, version in (("one", "0.1.0"), ("two", "0.1.0"), ("three", "<b>0.0.9")):
        assert server.worker.hello(name, version=version).status_code == 200
    shown = _text(browser, "/portal/settings")
    assert "Workers2 with version 0.1.0, 1 with version <b>0.0.9" in shown


def test_home_names_failed_and_paused_jobs_with_the_reason(server: Server) -> None:
    job_ids = [server.create_job(server.good_file(), suffix=name) for name in ("broke", "sleeps")]
    error = {"category": "user", "code": "recipe_invalid", "message": "the rate is <b>0</b>"}
    ended = {"state": "failed", "error": error, "finished_at": time.time()}
    with server.user_session() as session, session.begin():
        session.execute(update(JobRow).where(JobRow.id == job_ids[0]).values(ended))
    server.ask(job_ids[1], "pause")
    home = _text(signed_in(server), "/portal")
    assert "The rate is <b>0</b>." in home
    assert "It waits until it is resumed." in home


def test_jobs_of_other_projects_have_no_name(server: Server) -> None:
    other = caller(server, "member", new_project(caller(server, "admin")))
    job_id = server.create_job(server.good_file(), suffix="secret-run")
    server.worker.claim()
    browser = signed_in(server, other)
    for path in PAGES:
        page = browser.page(path)
        assert "secret-run" not in page
        assert job_id not in page
    assert "A job of default" in browser.page("/portal/workers")


def test_a_display_opens_the_screen_and_a_viewer_sees_it(server: Server) -> None:
    made = server.user.post("/v1/sessions", json={"name": "wall"}).json()
    screen = Browser(server)
    reply = screen.post("/portal/sign-in", data={"link": made["path"].partition("link=")[2]})
    assert reply.headers["location"] == "/portal/screen"
    page = check_page(screen.page("/portal/screen"))
    assert page.all("button", "input", "form") == []
    viewer = signed_in(server, caller(server, "viewer"))
    assert [viewer.get(path).status_code for path in PAGES] == [200, 200, 200]


def test_times_to_come() -> None:
    assert [view.soon(moment, 0) for moment in (None, -5, 59, 300, 7500)] == [
        view.UNKNOWN, "within a minute", "within a minute", "in 5 min", "in 2 h 05 min",
    ]  # fmt: skip

"""The page of a job in a browser: live curves, zoom by pointer and keys, orders, no scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import select

from tunesmith_schema import EventKind, JobState, RunEvent
from tunesmith_server.models import JobRow
from tunesmith_server.services.training import events

from . import chromium
from .service import Service, new_settings, serving
from .signing_in import sign_in
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser
DRAWN = "ts-chart[data-main] .uplot"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module, whose jobs the tests change."""
    with serving(new_settings(tmp_path_factory.mktemp("job-page"))) as started:
        yield started


@pytest.fixture
def page(running_chromium: Running, own: Service) -> Iterator[Page]:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    watch = Watch(context, own.url)
    yield context.new_page()
    context.close()
    watch.check()


def tell(service: Service, job_id: str, step: int, loss: float) -> None:
    """Store the metrics of a step, as a worker's report does."""
    data = {"step": step, "total_steps": 400, "train_loss": loss, "trained_tokens": 1000 + step}
    told = RunEvent.model_validate(
        {"source_seq": step, "created_at": 1.0, "kind": "metrics", "message": "", "data": data}
    )
    with service.database.write.begin() as session:
        job = session.scalars(select(JobRow).where(JobRow.id == job_id)).one()
        events.store_metrics(session, job, told)
        events.add(session, job, "", kind=EventKind.METRICS, data=told.data)


def test_figures_curves_and_title_follow_each_step(page: Page, own: Service) -> None:
    job_id = own.world.jobs["running"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector(DRAWN)
    page.wait_for_selector("#live[data-state=on]")
    for step in range(181, 201):
        tell(own, job_id, step, 0.4321)
    page.get_by_text("200 of 400 steps").wait_for()
    main = page.locator("ts-chart[data-main]")
    main.locator("[data-last=train_loss]", has_text="0.4321").wait_for()
    assert page.locator("[data-figure=train_loss]").inner_text() == "0.4321"
    assert page.title().startswith("50 % support-v2")
    assert page.locator("link[rel=icon]").get_attribute("href").startswith("data:image/svg")


def test_a_zoom_by_pointer_or_link_moves_all_curves_and_escape_ends_it(
    page: Page, own: Service
) -> None:
    job_id = own.world.jobs["succeeded"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector(DRAWN)
    box = page.locator("ts-chart[data-main] .u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.mouse.up()
    page.wait_for_url("**x=*")
    first, last = map(int, page.url.partition("x=")[2].split("-"))
    assert 190 <= first < last <= 310
    page.reload()
    page.wait_for_selector(DRAWN)
    assert page.url.endswith(f"x={first}-{last}")
    chart = page.locator("ts-chart[data-main] .chart-box")
    chart.focus()
    page.keyboard.press("End")
    said = page.locator("#said", has_text=f"Step {last}: Training")
    said.wait_for()
    page.keyboard.press("ArrowLeft")
    page.locator("#said", has_text=f"Step {last - 1}: Training").wait_for()
    page.keyboard.press("Escape")
    page.wait_for_url(lambda address: "x=" not in address)


def live(page: Page, first: int, last: int) -> None:
    """Give the page's scripts the metrics of these steps, as the stream does."""
    page.evaluate(
        """([first, last]) => {
            for (let step = first; step <= last; step++) {
                const data = { kind: "metrics", data: { step, train_loss: 1 } };
                const detail = { kind: "event", data };
                document.dispatchEvent(new CustomEvent("ts:live", { detail }));
            }
        }""",
        [first, last],
    )


@contextmanager
def first_curves_held(page: Page, job_id: str) -> Iterator[str]:
    """Open the page of a job. Its first request for curves is sent on after the block. Yields the
    names of the curves in this request."""
    held: list[Route] = []
    page.route("**/curves?*", lambda route: route.continue_() if held else held.append(route))
    with page.expect_request("**/curves?*") as first:
        page.goto(f"/portal/jobs/{job_id}", wait_until="load")
    yield parse_qs(urlsplit(first.value.url).query)["names"][0]
    held[0].continue_()


def test_a_folded_chart_is_fetched_when_it_opens_even_during_a_request(
    page: Page, own: Service
) -> None:
    with first_curves_held(page, own.world.jobs["succeeded"]) as names:
        assert "train_loss" in names
        assert "memory_rss" not in names
        page.locator(".folded summary").first.click()
    page.wait_for_selector(".folded ts-chart .uplot")
    assert page.locator(".folded .none").count() == 0


def test_a_point_that_comes_before_the_first_curves_stays(page: Page, own: Service) -> None:
    with first_curves_held(page, own.world.jobs["succeeded"]):
        live(page, 5000, 5000)
    page.wait_for_selector(DRAWN)
    page.locator("ts-chart[data-main] .chart-box").focus()
    page.keyboard.press("End")
    page.locator("#said", has_text="Step 5,000: Training 1").wait_for()


def test_points_that_come_while_the_curves_are_fetched_again_stay(page: Page, own: Service) -> None:
    page.goto(f"/portal/jobs/{own.world.jobs['succeeded']}")
    page.wait_for_selector(DRAWN)
    with page.expect_response("**/curves?*"):
        live(page, 1001, 3100)
    page.evaluate("() => new Promise((done) => setTimeout(done, 300))")
    page.locator("ts-chart[data-main] .chart-box").focus()
    page.keyboard.press("End")
    page.locator("#said", has_text="Step 3,100: Training").wait_for()


def test_smoothing_and_exports(page: Page, own: Service) -> None:
    job_id = own.world.jobs["succeeded"]
    page.goto(f"/portal/jobs/{job_id}?s=0.60")
    page.wait_for_selector(DRAWN)
    assert page.locator("#smooth").input_value() == "0.6"
    page.locator("#smooth").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_url("**s=0.62")
    main = page.locator("ts-chart[data-main]")
    with page.expect_download() as saved:
        main.get_by_role("button", name="PNG").click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as saved:
        main.get_by_role("link", name="CSV").click()
    assert Path(saved.value.path()).read_text().startswith("step,train_loss,valid_loss")


def test_an_order_asks_once_and_the_head_says_what_happens(page: Page, own: Service) -> None:
    job_id = own.world.jobs["reinforcement"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector("#live[data-state=on]")
    page.keyboard.press("p")
    page.locator("#head .badge", has_text="Pausing").wait_for()
    page.get_by_role("button", name="Resume").click()
    page.locator("#head .badge", has_text="Running").wait_for()
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("The job gets no result").wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0
    page.get_by_role("button", name="Stop and keep").click()
    dialog.get_by_role("button", name="Stop and keep").click()
    page.get_by_text("Stopping after the next step").wait_for()


def test_name_notes_and_pin_are_edited_by_keys(page: Page, own: Service) -> None:
    job_id = own.world.jobs["queued"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector("#live[data-state=on]")
    page.keyboard.press("n")
    page.wait_for_selector("dialog:modal .edit [name=name]:focus")
    page.keyboard.type("discarded")
    page.keyboard.press("Escape")
    page.locator("dialog:modal").wait_for(state="detached")
    page.keyboard.press("n")
    page.wait_for_selector("dialog:modal .edit [name=name]:focus")
    page.keyboard.type("slower")
    page.keyboard.press("Tab")
    page.keyboard.type("x < 1\n<b>second</b>")
    for key in ("Tab", "Tab", "Enter"):  # the second button saves and pins
        page.keyboard.press(key)
    page.locator("#head .tag", has_text="Pinned").wait_for()
    assert page.locator("h1").inner_text() == "slower"
    assert page.locator("#head .notes").inner_text() == "x < 1\n<b>second</b>"
    page.keyboard.press("Control+k")
    page.keyboard.type("edit name")
    page.get_by_role("link", name="Edit name, notes and pin of this job").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_selector("#main > .card .edit [name=name]:focus")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/portal/jobs/{job_id}")
    assert page.locator("h1").inner_text() == "slower"
    page.goto("/portal/jobs")
    page.locator(f"#row-{job_id} .tag", has_text="Pinned").wait_for()


def test_an_event_from_elsewhere_changes_the_parts(page: Page, own: Service) -> None:
    job_id = own.world.jobs["running"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector("#live[data-state=on]")
    with own.database.write.begin() as session:
        job = session.scalars(select(JobRow).where(JobRow.id == job_id)).one()
        events.add(session, job, "the disk is nearly full", level="warn")
    page.locator("#why", has_text="the disk is nearly full").wait_for()
    page.locator("#events", has_text="the disk is nearly full").wait_for()


def test_a_page_without_scripts_is_complete(running_chromium: Running, own: Service) -> None:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(
        running_chromium, base_url=own.url, storage_state=state, java_script_enabled=False
    )
    plain = context.new_page()
    plain.goto(f"/portal/jobs/{own.world.jobs['running']}")
    assert plain.locator("ts-chart[data-main] svg.still path").count() == 2
    plain.get_by_role("button", name="Cancel").click()
    plain.get_by_role("dialog").get_by_role("button", name="Cancel").wait_for()
    plain.get_by_role("button", name="Let it run").click()
    assert plain.get_by_role("dialog").count() == 0
    context.close()


def test_rows_of_the_list_follow_their_jobs(page: Page, own: Service) -> None:
    job_id = own.world.jobs["running"]
    page.goto("/portal/jobs")
    page.wait_for_selector("#rows")
    page.wait_for_selector("#live[data-state=on]")
    tell(own, job_id, 250, 0.25)
    page.locator(f"#row-{job_id} .steps", has_text="250/400").wait_for()
    page.locator(f"#row-{job_id} .curve", has_text="0.25").wait_for()


def test_a_visitor_who_asks_is_notified_once_when_the_job_ends(page: Page, own: Service) -> None:
    page.add_init_script("""
        window.shown = [];
        window.Notification = class {
          static permission = "default";
          static async requestPermission() { return this.permission = "granted"; }
          constructor(title, options) { shown.push([title, options.body, options.tag]); }
        };
    """)
    job_id = own.world.jobs["running"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector("#live[data-state=on]")
    asking = page.get_by_role("button", name="Notify me")
    page.get_by_role("button", name="Notify me", pressed=False).click()
    page.get_by_role("button", name="Notify me", pressed=True).click()  # changes their mind, twice
    page.get_by_role("button", name="Notify me", pressed=False).press("Enter")
    page.get_by_role("button", name="Notify me", pressed=True).wait_for()
    with own.database.write.begin() as session:
        job = session.scalars(select(JobRow).where(JobRow.id == job_id)).one()
        for _ in range(2):
            events.add(session, job, "ended", kind=EventKind.STATE, data={"state": "succeeded"})
        job.state = JobState.SUCCEEDED
    asking.wait_for(state="detached")
    steps = page.locator("#steps").inner_text()
    assert page.evaluate("shown") == [["support-v2 succeeded", steps, job_id]]

"""Pages Compare and Completions in a browser: keys, axis, live curves, slider, held values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from . import chromium
from .service import Service, new_settings, serving
from .signing_in import sign_in
from .test_job_page import tell
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
DRAWN = "ts-chart[data-main] .uplot"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module, whose jobs the tests change."""
    with serving(new_settings(tmp_path_factory.mktemp("compare"))) as started:
        yield started


@pytest.fixture
def page(running_chromium: Running, own: Service) -> Iterator[Page]:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    watch = Watch(context, own.url)
    yield context.new_page()
    context.close()
    watch.check()


def test_jobs_are_picked_and_compared_by_keyboard(page: Page, own: Service) -> None:
    running, succeeded = own.world.jobs["running"], own.world.jobs["succeeded"]
    page.goto("/portal/jobs")
    page.wait_for_selector("#live[data-state=on]")
    for job_id in (running, succeeded):
        page.locator(f"#row-{job_id} th a").focus()
        page.keyboard.press("x")
    page.wait_for_url(lambda url: f"pick={running},{succeeded}" in url)
    page.get_by_label("State").select_option("succeeded")
    page.locator(".picked", has_text="support-v2").wait_for()
    page.get_by_role("button", name="Compare 2").wait_for()
    page.locator("#rows th a").first.focus()
    page.keyboard.press("v")
    page.wait_for_selector(DRAWN)
    assert {running, succeeded} <= set(page.url.replace("&", "=").split("="))
    page.keyboard.press("1")
    page.wait_for_url("**hide=1")
    page.reload()
    page.wait_for_selector(DRAWN)
    assert page.locator("[data-hide='1']").get_attribute("aria-pressed") == "false"
    page.get_by_role("link", name="Trained tokens").click()
    page.wait_for_url("**axis=tokens**")
    page.wait_for_selector(DRAWN)


def test_running_jobs_are_live(page: Page, own: Service) -> None:
    running, succeeded = own.world.jobs["running"], own.world.jobs["succeeded"]
    page.goto(f"/portal/compare?jobs={running},{succeeded}")
    page.wait_for_selector(DRAWN)
    page.wait_for_selector("#live[data-state=on]")
    tell(own, running, 300, 0.1234)
    page.locator("[data-last='train_loss.1']", has_text="0.1234").wait_for()
    page.locator("#tables", has_text="0.1234").wait_for()


def test_the_slider_goes_from_step_to_step_and_a_completion_opens(page: Page, own: Service) -> None:
    job_id = own.world.jobs["reinforced"]
    page.goto(f"/portal/jobs/{job_id}")
    page.locator("#completions .teach li").first.wait_for()
    page.get_by_role("link", name="All completions").click()
    page.wait_for_selector(".group")
    page.locator("#step").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**step=180")
    page.get_by_role("heading", name="Step 180").wait_for()
    page.keyboard.press("ArrowLeft")
    page.wait_for_url("**step=160")
    page.locator("#above").fill("0.5")
    page.wait_for_url("**reward_gt=0.5")
    page.locator("td.said a").first.click()
    page.locator("#opened .grading").first.wait_for()
    page.get_by_role("link", name="across steps").first.click()
    page.locator(".moments li").first.wait_for()


def test_a_click_holds_the_values_of_a_step_in_the_address(page: Page, own: Service) -> None:
    job_id = own.world.jobs["succeeded"]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector(DRAWN)
    page.locator("ts-chart[data-main] .u-over").click(position={"x": 200, "y": 60})
    page.wait_for_url("**at=*")
    held = page.locator("ts-chart[data-main] [data-last=train_loss]").inner_text()
    page.mouse.move(0, 0)
    page.reload()
    page.wait_for_selector(DRAWN)
    assert page.locator("ts-chart[data-main] [data-last=train_loss]").inner_text() == held
    page.locator("ts-chart[data-main] .chart-box").focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_url("**at=500")

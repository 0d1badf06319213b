"""The form of a new job in a browser: by keyboard alone, with a draft that survives a reload."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from . import axe, chromium, installed
from .service import Service, new_settings, serving
from .signing_in import sign_in
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
_LATE_TIMERS = """
const timer = window.setTimeout;
window.setTimeout = (call, delay, ...rest) => timer(call, delay || 1500, ...rest);
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module, in which the test starts a job."""
    with serving(new_settings(tmp_path_factory.mktemp("new-job"))) as started:
        yield started


@pytest.fixture
def page(running_chromium: Running, own: Service) -> Iterator[Page]:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    watch = Watch(context, own.url)
    yield context.new_page()
    context.close()
    watch.check()


def test_a_job_is_started_by_keyboard_and_a_reload_keeps_the_draft(
    page: Page, own: Service, browser_files: installed.Browser
) -> None:
    page.goto("/portal")
    page.wait_for_selector("#home")
    page.keyboard.press("c")
    page.wait_for_selector("#new-job")
    page.wait_for_load_state("load")  # scripts listen from then on
    page.locator("#f-model").focus()
    page.keyboard.type("tiny-lama")
    page.locator("#check [data-field=model]").wait_for()
    assert page.locator("#e-model").inner_text().startswith("No model 'tiny-lama'")
    page.keyboard.press("Control+A")
    page.keyboard.type("tiny-llama")
    page.keyboard.press("Tab")
    page.keyboard.type("support-train")
    page.locator("#ready", has_text="would accept").wait_for()
    page.locator("#f-suffix").focus()
    page.keyboard.type("by-keyboard")
    page.reload()
    page.locator("#draft").wait_for()
    assert page.locator("#f-suffix").input_value() == "by-keyboard"
    assert page.locator("#f-training_file").input_value() == own.world.files["train"]
    page.locator("#ready", has_text="would accept").wait_for()
    assert axe.violations(page, browser_files.axe) == []
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#head")
    page.wait_for_load_state()
    assert "by-keyboard" in page.locator("h1").inner_text()
    assert (
        page.evaluate("Object.keys(localStorage).filter(key => key.startsWith('draft')).length")
        == 0
    )


def test_a_draft_is_checked_when_timers_are_late(page: Page, own: Service) -> None:
    page.goto("/portal/jobs/new")
    page.wait_for_load_state("load")
    page.locator("#f-model").fill("tiny-llama")
    page.locator("#f-training_file").select_option(own.world.files["train"])
    page.locator("#ready", has_text="would accept").wait_for()
    page.add_init_script(_LATE_TIMERS)  # as on a busy machine, where the load event may come first
    page.reload()
    page.locator("#draft").wait_for()
    page.locator("#ready", has_text="would accept").wait_for(timeout=15_000)

"""Pages on a dark phone by keys alone: one prompt across steps, and the download of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import OpenPage
from .service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
_MOST_TABS = 60
_FOCUSED = """() => {
  const { textContent, ariaLabel } = document.activeElement;
  const { top, bottom } = document.activeElement.getBoundingClientRect();
  return [(ariaLabel ?? textContent).trim(), top >= 0 && bottom <= innerHeight];
}"""


def tab_to(page: Page, name: str) -> None:
    """Press Tab until an element with this name has the focus, and check that it is in view."""
    for _ in range(_MOST_TABS):
        page.keyboard.press("Tab")
        text, is_in_view = page.evaluate(_FOCUSED)
        if text == name:
            assert is_in_view, name
            return
    raise AssertionError(f"the Tab key does not reach {name!r}")


def test_a_prompt_is_read_across_steps(page_of: OpenPage, service: Service) -> None:
    page, watch = page_of(size="phone", theme="dark")
    page.goto(f"/portal/jobs/{service.world.jobs['reinforced']}")
    page.wait_for_selector("#completions .teach")
    page.keyboard.press("r")
    page.get_by_role("heading", name="Step 200").wait_for()
    page.wait_for_load_state()
    page.keyboard.press("[")
    page.get_by_role("heading", name="Step 180").wait_for()
    page.wait_for_load_state()
    page.keyboard.press("a")
    page.wait_for_selector(".moments")
    tab_to(page, "2")  # of the four completions of each step
    page.keyboard.press("Enter")
    page.wait_for_selector(".places a:text-is('2')[aria-current=true]")
    tab_to(page, "Step 20")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Completion of step 20").wait_for()
    page.locator("#opened").wait_for()
    page.wait_for_load_state()
    page.keyboard.press("a")
    page.wait_for_selector(".moments")
    tab_to(page, "All prompts of a step")
    page.keyboard.press("Enter")
    page.wait_for_selector(".group")
    watch.check()


def test_a_model_is_downloaded(page_of: OpenPage, service: Service) -> None:
    page, watch = page_of(size="phone", theme="dark")
    page.goto("/portal/jobs")
    page.wait_for_selector("#jobs tbody tr")
    page.keyboard.press("g")
    page.keyboard.press("m")
    page.wait_for_selector("#models")
    name = service.world.results["succeeded"]
    tab_to(page, name)
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict .num")
    tab_to(page, "Download")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".tar")
    watch.check()

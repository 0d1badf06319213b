"""The list of jobs in a browser: search and filters by keyboard, state in the address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import OpenPage
from .service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.browser


def test_jobs_are_searched_by_keyboard_and_the_address_keeps_it(
    page_of: OpenPage, service: Service
) -> None:
    page, _ = page_of()
    page.goto("/portal/jobs")
    page.wait_for_selector(f"#jobs a[href*='{service.world.jobs['running']}']")
    page.keyboard.press("/")
    page.keyboard.type("night-run")
    page.wait_for_url("**q=night-run*")
    page.wait_for_selector(f"#jobs a[href*='{service.world.jobs['paused']}']")
    assert page.locator(f"#jobs a[href*='{service.world.jobs['running']}']").count() == 0
    page.reload()
    assert page.get_by_label("Search jobs").input_value() == "night-run"
    assert page.locator(f"#jobs a[href*='{service.world.jobs['paused']}']").count() > 0


HOLD = """path => {
    const real = window.fetch;
    window.fetch = (address, options) => {
        if (!String(address).includes(path)) return real(address, options);
        window.fetch = real;
        document.documentElement.dataset.holds = path;
        return new Promise((_, reject) => options.signal.addEventListener(
            "abort", () => reject(new DOMException("", "AbortError"))));
    };
}"""
"""Script that leaves the page's next request of a path without an answer."""


@pytest.mark.parametrize(
    ("path", "key", "found"),
    [("/portal/jobs?", "/", "#jobs"), ("/portal/find?", "Control+k", "#found")],
    ids=["list", "find"],
)
def test_the_last_text_is_searched_while_an_answer_is_slow(
    page_of: OpenPage, service: Service, path: str, key: str, found: str
) -> None:
    page, _ = page_of()
    page.goto("/portal/jobs")
    page.evaluate(HOLD, path)
    page.keyboard.press(key)
    page.keyboard.type("night")
    page.wait_for_selector("html[data-holds]")
    page.keyboard.type("-run")
    page.wait_for_selector(f"{found} a[href*='{service.world.jobs['paused']}']")
    other = page.locator(f"{found} a[href*='{service.world.jobs['running']}']")
    other.first.wait_for(state="detached")


def test_keys_work_as_soon_as_a_page_has_loaded(page_of: OpenPage) -> None:
    page, _ = page_of()

    def late(route: Route) -> None:
        page.wait_for_timeout(500)
        route.continue_()

    page.route("**/palette.js", late)
    page.goto("/portal/jobs")
    page.keyboard.press("Control+k")
    typed_into = page.evaluate("document.activeElement.placeholder")
    assert typed_into == "Find jobs, models, files, actions"

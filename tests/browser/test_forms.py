"""Forms: a failure keeps the page and what was typed; an answer with problems replaces the form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from .conftest import OpenPage
from .service import Service, new_settings, serving
from .signing_in import SignedIn, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module, which the tests change."""
    with serving(new_settings(tmp_path_factory.mktemp("forms"))) as started:
        yield started


@pytest.fixture(scope="module")
def signed_in(running_chromium: Running, service: Service) -> SignedIn:
    return sign_in(running_chromium, service)


def refuse_changes(page: Page) -> None:
    """Answer requests that change data as a proxy does while the API is away."""

    def answer(route: Route) -> None:
        if route.request.method == "POST":
            route.fulfill(status=502, body="")
        else:
            route.fallback()

    page.route("**/portal/**", answer)


def test_a_form_keeps_its_text_while_the_service_is_away(
    page_of: OpenPage, service: Service
) -> None:
    page, watch = page_of()
    watch.expected = {502}
    page.goto("/portal/settings")
    refuse_changes(page)
    name = page.get_by_label("Name of the screen")
    name.fill("hall")
    name.press("Enter")
    page.locator("#notice", has_text="Nothing was sent").wait_for()
    assert (name.input_value(), page.url) == ("hall", f"{service.url}/portal/settings")
    page.unroute_all()
    name.press("Enter")
    page.locator("#displays + p + .callout code", has_text="link=").wait_for()
    assert page.locator("#notice").is_hidden()
    assert page.url == f"{service.url}/portal/settings"


def test_a_dialog_and_the_sign_in_say_that_nothing_was_sent(
    page_of: OpenPage, service: Service
) -> None:
    page, watch = page_of()
    watch.expected = {502}
    page.goto(f"/portal/jobs/{service.world.jobs['paused']}?ask=cancel")
    refuse_changes(page)
    dialog = page.locator("#ask-cancel")
    dialog.get_by_role("button", name="Cancel").click()
    dialog.locator(".notice", has_text="Nothing was sent").wait_for()
    assert dialog.is_visible()
    anonymous, watch = page_of(caller="nobody")
    watch.expected = {401, 502}
    anonymous.goto("/portal/sign-in")
    refuse_changes(anonymous)
    key = anonymous.get_by_label("API key")
    key.fill("wrong")
    key.press("Enter")
    anonymous.locator("form .notice", has_text="Nothing was sent").wait_for()
    assert key.input_value() == "wrong"
    anonymous.unroute_all()
    key.press("Enter")
    anonymous.locator("#problem", has_text="not valid").wait_for()
    assert anonymous.evaluate("document.activeElement.id") == "key"


def test_an_error_of_the_service_names_code_and_request(
    page_of: OpenPage, service: Service
) -> None:
    page, watch = page_of()
    watch.expected = {409, 400}
    page.goto(f"/portal/data/{service.world.files['train']}")
    page.locator("main [popovertarget^=delete]").first.click()
    page.locator("dialog:popover-open .danger").click()
    notice = page.locator("dialog:popover-open .notice")
    notice.locator("code", has_text="file_in_use").wait_for()
    assert "req" in notice.inner_text()


def test_a_second_press_sends_nothing(page_of: OpenPage) -> None:
    page, _ = page_of()
    page.goto("/portal/settings")
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.method))
    page.get_by_label("Name of the screen").fill("twice")
    page.get_by_role("button", name="Make a link").dblclick()
    page.locator(".callout code", has_text="link=").wait_for()
    assert sent.count("POST") == 1


def test_a_browser_without_notifications_has_no_gap_and_says_why(
    page_of: OpenPage, service: Service
) -> None:
    page, _ = page_of()
    page.add_init_script("delete window.Notification")
    page.goto(f"/portal/jobs/{service.world.jobs['running']}")
    page.wait_for_selector("[data-main] .uplot")
    verbs = page.locator("#head .verbs > *")
    assert [item for item in verbs.all() if not item.is_visible()] == []
    button = page.get_by_role("button", name="Notify me")
    assert button.get_attribute("aria-disabled") == "true"
    button.click(force=True)
    page.locator("#notice", has_text="only on pages with https").wait_for()

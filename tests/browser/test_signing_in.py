"""Sign-in and sign-out, by keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .conftest import OpenPage
from .service import Service
from .signing_in import SIGN_IN, enter_key

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
_FOCUSED = "document.activeElement.innerText || document.activeElement.id"
MOST_TABS = 40


def tab_to(page: Page, name: str) -> None:
    """Press Tab until the element with this text or id has the focus."""
    for _ in range(MOST_TABS):
        if page.evaluate(_FOCUSED).strip() == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name!r} was not reached with {MOST_TABS} presses of Tab")


def test_a_user_signs_in_and_out_by_keyboard(page_of: OpenPage, service: Service) -> None:
    page, _ = page_of(caller="nobody")
    page.goto("/portal/jobs")
    page.wait_for_url(f"**{SIGN_IN}?*")
    tab_to(page, "key")
    page.keyboard.type(service.key)
    page.keyboard.press("Enter")
    page.wait_for_url("**/portal/jobs")
    cookies = page.context.cookies()
    assert [cookie["httpOnly"] for cookie in cookies if "session" in cookie["name"]] == [True]
    tab_to(page, "Sign out")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{SIGN_IN}*")
    page.goto("/portal/jobs")
    page.wait_for_url(f"**{SIGN_IN}?*")


def test_a_wrong_key_is_refused_and_said_at_its_field(page_of: OpenPage) -> None:
    page, watch = page_of(caller="nobody")
    watch.expected = {401, 403}
    page.goto(SIGN_IN)
    page.get_by_label("API key").fill("tunesk-wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector("#problem")
    page.wait_for_selector("#key:focus")
    field = page.get_by_label("API key")
    assert field.get_attribute("aria-invalid") == "true"
    assert "wrong" not in page.inner_text("#problem"), "the page shows the key"


def test_signing_out_ends_the_session_in_every_tab(page_of: OpenPage, service: Service) -> None:
    page, _ = page_of(caller="nobody")
    enter_key(page, service.key)
    other = page.context.new_page()
    other.goto("/portal/jobs")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url(f"**{SIGN_IN}*")
    other.reload()
    other.wait_for_url(f"**{SIGN_IN}?*")

"""A hidden page sends no requests, and is current as soon as it is visible again."""

from __future__ import annotations

import pytest

from .conftest import OpenPage

pytestmark = pytest.mark.browser

_HIDE = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s})"
_TICK = "document.querySelector('#home').dispatchEvent(new CustomEvent('every'))"
_TOLD = "document.dispatchEvent(new Event('visibilitychange'))"


def test_a_hidden_home_page_waits_until_it_is_visible(page_of: OpenPage) -> None:
    page, watch = page_of()
    page.goto("/portal")
    page.wait_for_selector("#home")
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(_HIDE % "true")
    page.evaluate(_TICK)
    page.evaluate(_TOLD)
    page.wait_for_timeout(500)
    assert asked == []
    page.evaluate(_HIDE % "false")
    with page.expect_response("**/portal"):
        page.evaluate(_TOLD)
    with page.expect_response("**/portal"):
        page.evaluate(_TICK)
    watch.check()

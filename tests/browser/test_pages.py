"""What holds for every page of `pages.VISITS`."""

from __future__ import annotations

import pytest

from . import axe, chromium, installed
from .conftest import OpenPage
from .pages import VISITS, Visit
from .seeding import PWNED
from .service import Service

pytestmark = pytest.mark.browser
WIDTHS = (1440, 720, 390, 320)
"""720 pixels are 1440 pixels at a zoom of 200 %."""
_PAGES = [visit for visit in VISITS if not visit.is_state]
_STATES = [visit for visit in VISITS if visit.is_state]
each_page = pytest.mark.parametrize("visit", _PAGES, ids=[visit.name for visit in _PAGES])
each_state = pytest.mark.parametrize("visit", _STATES, ids=[visit.name for visit in _STATES])


@each_page
def test_a_page_is_accessible_and_silent_and_never_scrolls_sideways(
    visit: Visit, page_of: OpenPage, service: Service, browser_files: installed.Browser
) -> None:
    """Light and wide; then windows of all widths."""
    page, watch = page_of(caller=visit.caller)
    watch.expected = {visit.status} - {200}
    visit.open(page, service)
    assert page.evaluate(f"'{PWNED}' in window") is False, "a hostile text ran as a script"
    if visit.axe:
        assert axe.violations(page, browser_files.axe) == []
    wider = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        wider[width] = axe.sideways_pixels(page)
    assert wider == dict.fromkeys(WIDTHS, 0)
    watch.check()


@each_page
def test_a_page_is_accessible_in_the_other_looks(
    visit: Visit, page_of: OpenPage, service: Service, browser_files: installed.Browser
) -> None:
    """Light on a phone; then the open page gets dark and wide."""
    page, watch = page_of(caller=visit.caller, theme="light", size="phone")
    watch.expected = {visit.status} - {200}
    visit.open(page, service)
    if visit.axe:
        assert axe.violations(page, browser_files.axe) == []
        page.emulate_media(color_scheme="dark")
        width, height = chromium.SIZES["wide"]
        page.set_viewport_size({"width": width, "height": height})
        assert axe.violations(page, browser_files.axe) == []


@each_page
def test_a_page_respects_the_settings_of_its_reader(
    visit: Visit, page_of: OpenPage, service: Service, browser_files: installed.Browser
) -> None:
    """Dark on a phone without motion; then with forced colours."""
    page, watch = page_of(caller=visit.caller, theme="dark", size="phone", reduced_motion="reduce")
    watch.expected = {visit.status} - {200}
    visit.open(page, service)
    assert page.evaluate(f"'{PWNED}' in window") is False, "a hostile text ran as a script"
    moving = "document.getAnimations().filter(motion => motion.playState === 'running').length"
    if visit.axe:
        assert page.evaluate(moving) == 0
        assert axe.violations(page, browser_files.axe) == []
        page.emulate_media(forced_colors="active")
        assert axe.violations(page, browser_files.axe) == []
    assert axe.sideways_pixels(page) == 0
    watch.check()


@each_state
def test_a_page_in_another_state_is_accessible_silent_and_not_too_wide(
    visit: Visit, page_of: OpenPage, service: Service, browser_files: installed.Browser
) -> None:
    """Light and wide; then the open page gets dark and narrow."""
    page, watch = page_of(caller=visit.caller)
    watch.expected = {visit.status} - {200}
    visit.open(page, service)
    assert axe.violations(page, browser_files.axe) == []
    page.emulate_media(color_scheme="dark")
    width, height = chromium.SIZES["phone"]
    page.set_viewport_size({"width": width, "height": height})
    assert axe.violations(page, browser_files.axe) == []
    assert axe.sideways_pixels(page) == 0
    watch.check()

"""The list of jobs in a browser: search and filters by keyboard, state in the address."""

from __future__ import annotations

import pytest

from .conftest import OpenPage
from .service import Service

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

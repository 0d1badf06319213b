"""Tests in Chromium."""

from __future__ import annotations

from .table import ALL, Rows

ROWS: Rows = {
    # Bars of weight, CPU and live pages.
    "browser/test_bars.py": {
        "test_a_page_is_light_quick_and_still": ("job", "jobs"),
        "test_many_tabs_are_live_over_one_connection": (),
        "test_an_api_that_was_killed_is_live_again_and_no_step_is_lost": (),
        "test_a_form_keeps_its_text_while_the_api_is_away": (),
    },
    "browser/test_proxy.py": {ALL: ()},
    "browser/test_pages.py": {
        "test_a_page_is_accessible_in_the_other_looks": (),
    },
}

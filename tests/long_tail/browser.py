"""Tests in Chromium."""

from __future__ import annotations

from .table import Rows

ROWS: Rows = {
    "browser/test_pages.py": {
        "test_a_page_is_accessible_and_silent": ("*-light-wide", "*-dark-phone"),
    },
}

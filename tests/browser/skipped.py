"""The last line of a test run without a browser."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def summary(reports: Iterable[pytest.TestReport]) -> str | None:
    """Return how many of the skipped tests need a browser, and why they were skipped; None if
    there are none."""
    skipped = [report for report in reports if "browser" in report.keywords]
    if not skipped:
        return None
    longrepr = skipped[0].longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return f"{len(skipped)} browser tests were skipped: {reason.removeprefix('Skipped: ')}"

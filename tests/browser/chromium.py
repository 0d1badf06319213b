"""Chromium under Playwright, as the tests, the screenshots and the benchmark start it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .installed import Browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import BrowserContext

_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
"""Only our own pages are opened, so no sandbox is needed; many machines do not allow one."""
SIZES = {"wide": (1440, 900), "phone": (390, 844)}
"""Window sizes in CSS pixels."""
THEMES = ("light", "dark")
TIMEOUT_MS = 60_000.0
"""Time within which a page shows what a test waits for, on a busy machine."""


@contextmanager
def running(browser: Browser) -> Iterator[Running]:
    """Start Chromium. It ends with the block, as does Playwright's event loop in this thread."""
    from playwright.sync_api import sync_playwright

    from .install import node

    # Playwright's own Node needs libatomic, which a bare Debian lacks.
    os.environ["PLAYWRIGHT_NODEJS_PATH"] = str(node())
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(browser.executable),
            args=list(_ARGUMENTS),
            env={**os.environ, **browser.environment},
        )
        try:
            yield started
        finally:
            started.close()


def new_context(
    chromium: Running,
    *,
    size: str | tuple[int, int] = "wide",
    theme: str = "light",
    **options: Any,  # Any: options of Playwright's new_context
) -> BrowserContext:
    """Open a fresh profile. `size` is a name in SIZES, or width and height in CSS pixels. The
    Content-Security-Policy of pages holds."""
    width, height = SIZES[size] if isinstance(size, str) else size
    context: BrowserContext = chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme=theme,
        locale="en-US",
        timezone_id="UTC",
        **options,
    )
    context.set_default_timeout(TIMEOUT_MS)
    return context

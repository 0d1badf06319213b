"""Accessibility rules of axe-core, run inside a page.

The script is brought in by the debugging protocol: a script tag would violate the page's
Content-Security-Policy, which is under test.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

_RUN = """async () => (await axe.run()).violations.map(
    rule => `${rule.id}: ${rule.nodes.slice(0, 5).map(node => node.html.slice(0, 200)).join(" ")}`)
"""


def violations(page: Page, axe: Path) -> list[str]:
    """Return the violated rules of any kind, each with the first elements that violate it."""
    session = page.context.new_cdp_session(page)
    session.send("Runtime.evaluate", {"expression": axe.read_text()})
    session.detach()
    found: list[str] = page.evaluate(_RUN)
    return found


def sideways_pixels(page: Page) -> int:
    """Return by how many pixels the page is wider than its window; axe does not look at this."""
    pixels: int = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    return max(pixels, 0)

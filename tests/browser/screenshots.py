"""Screenshots of every page: `python -m tests.browser.screenshots --out FOLDER [--only NAME]`.

Each page of `pages.VISITS` is stored in both sizes and both themes, whole, as
`NAME-SIZE-THEME.png`. People look at them before a commit that changes a page.
`--readme` makes the pictures of the README instead: `--readme --out docs/reference/images`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from . import chromium, installed
from .pages import VISITS, Visit
from .service import Service, new_settings, serving
from .signing_in import SignedIn, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running

TALLEST = 4000
"""Pixels after which a long page is cut."""
README = {"jobs": 580, "job": 900}
"""Height of each picture of the README, in CSS pixels, by the name of its page."""
README_SCALE = 2 / 3
"""Pixels of these pictures per CSS pixel."""


def main() -> int:
    """Store the screenshots and print their names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the screenshots")
    parser.add_argument("--only", default="", help="part of the names of the pages")
    parser.add_argument("--readme", action="store_true", help="make the README's pictures")
    given = parser.parse_args()
    visits = [visit for visit in VISITS if given.only in visit.name]
    if not visits:
        parser.error(f"no page is called {given.only!r}; see tests/browser/pages.py")
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        files = installed.find()
    except installed.NoBrowser as reason:
        print(reason, file=sys.stderr)  # noqa: T201  a program
        return 1
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(new_settings(Path(folder))) as service,
        chromium.running(files) as running,
    ):
        mine = any(visit.caller == "ann" for visit in visits)
        signed_in = sign_in(running, service) if mine else {}
        if given.readme:
            _readme(running, service, signed_in, given.out)
            return 0
        for visit in visits:
            for size, (width, height) in chromium.SIZES.items():
                for theme in chromium.THEMES:
                    context = chromium.new_context(
                        running, size=size, theme=theme, base_url=service.url,
                        storage_state=_state(visit, service, signed_in),
                    )  # fmt: skip
                    page = context.new_page()
                    visit.open(page, service)
                    tall = page.evaluate("document.documentElement.scrollHeight")
                    tall = min(max(tall, height), TALLEST)
                    page.set_viewport_size({"width": width, "height": tall})
                    path = given.out / f"{visit.name}-{size}-{theme}.png"
                    page.screenshot(path=str(path))
                    context.close()
                    print(path)  # noqa: T201  a program
    return 0


def _state(visit: Visit, service: Service, signed_in: SignedIn) -> SignedIn:
    return signed_in if visit.caller == "ann" else service.profile(visit.caller)


def _readme(running: Running, service: Service, signed_in: SignedIn, out: Path) -> None:
    """Store the pictures of the README as `portal-NAME.png`, and print their names."""
    for visit in VISITS:
        if height := README.get(visit.name):
            context = chromium.new_context(
                running, size=(chromium.SIZES["wide"][0], height), base_url=service.url,
                storage_state=signed_in, device_scale_factor=README_SCALE,
            )  # fmt: skip
            page = context.new_page()
            visit.open(page, service)
            path = out / f"portal-{visit.name}.png"
            page.screenshot(path=str(path))
            context.close()
            print(path)  # noqa: T201  a program


if __name__ == "__main__":
    sys.exit(main())

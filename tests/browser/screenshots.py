"""Screenshots of every page: `python -m tests.browser.screenshots --out FOLDER [--only NAME]`.

Each page of `pages.VISITS` is stored in both sizes and both themes, whole, as
`NAME-SIZE-THEME.png`. People look at them before a commit that changes a page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from . import chromium, installed
from .pages import VISITS
from .service import new_settings, serving
from .signing_in import sign_in

TALLEST = 4000
"""Pixels after which a long page is cut."""


def main() -> int:
    """Store the screenshots and print their names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the screenshots")
    parser.add_argument("--only", default="", help="part of the names of the pages")
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
        mine = any(not visit.anonymous for visit in visits)
        signed_in = sign_in(running, service) if mine else {}
        for visit in visits:
            for size, (width, height) in chromium.SIZES.items():
                for theme in chromium.THEMES:
                    state = {"storage_state": {} if visit.anonymous else signed_in}
                    context = chromium.new_context(
                        running, size=size, theme=theme, base_url=service.url, **state
                    )
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


if __name__ == "__main__":
    sys.exit(main())

"""Measure the sizes of the scripts, and bytes, requests, paint time, layout shift and CPU of each
page. Each page is visited with an empty cache and with a filled cache."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser import chromium
from tests.browser.meter import metered
from tests.browser.pages import VISITS, Visit
from tests.browser.process import ApiProcess
from tests.browser.service import Service

from tunesmith_server import portal

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from tests.browser.signing_in import SignedIn

BARS = {
    "first_kb": 180, "first_requests": 20, "jobs_first_kb": 130, "later_kb": 25,
    "main_thread_seconds": 0.4, "layout_shift": 0, "server_p95_ms": 60, "own_script_gzip_kb": 40,
    "all_scripts_gzip_kb": 90,
}  # fmt: skip
_REQUESTS = 20
_PERCENTILE_95 = 18


def scripts() -> dict[str, float]:
    """Return the compressed size of our own scripts and of all scripts, in kB."""
    folder = Path(portal.__file__).parent / "static"
    files = {path: path.read_bytes() for path in folder.rglob("*.js")}
    sizes = {path: len(gzip.compress(content, 9)) for path, content in files.items()}
    own = sum(size for path, size in sizes.items() if "vendor" not in path.parts)
    return {
        "own_script_gzip_kb": round(own / 1000, 1),
        "all_scripts_gzip_kb": round(sum(sizes.values()) / 1000, 1),
    }


def visits() -> list[Visit]:
    """Return the visits to measure: those of the browser tests, without error pages, pages with
    model answers, and pages after a click."""
    own = [visit for visit in VISITS if visit.axe and visit.status == 200 and not visit.click]
    own = [visit for visit in own if not visit.is_state]
    return [visit for visit in own if visit.ready != "#answers"]


def measure_page(
    chromium_running: Running, service: Service, state: SignedIn, visit: Visit
) -> dict[str, Any]:  # Any: JSON
    """Visit a page with an empty cache, then visit it again."""
    context = chromium.new_context(
        chromium_running,
        base_url=service.url,
        storage_state={} if visit.caller == "nobody" else state,
    )
    page = context.new_page()
    with metered(page) as first:
        visit.open(page, service)
    page.goto("about:blank")
    with metered(page) as later:
        visit.open(page, service)
    context.close()
    return {
        "first_kb": round(first.bytes / 1000, 1),
        "first_requests": first.requests,
        "later_kb": round(later.bytes / 1000, 1),
        "main_thread_seconds": first.main_thread_seconds,
        "first_paint_ms": first.first_paint_ms and round(first.first_paint_ms),
        "layout_shift": max(first.layout_shift, later.layout_shift),
    }


def server_milliseconds(api: ApiProcess, ask: Any, paths: Iterable[str]) -> dict[str, float]:
    """Return the 95th percentile of the CPU time that the API needs for each page. `ask` requests a
    path."""
    found = {}
    for path in paths:
        times = []
        for number in range(_REQUESTS + 2):
            before = api.cpu_seconds()
            ask(path)
            time.sleep(0.01)  # the answer's last work
            if number > 1:
                times.append(api.cpu_seconds() - before)
        found[path] = round(1000 * sorted(times)[_PERCENTILE_95], 1)
    return found

"""Measure the portal: `python -m benchmarks.portal [--only PART ...] [--write]`.

Starts the API in a separate process on SQLite, with 10,000 jobs, a run of 100,000 steps and 10,000
samples, and opens the portal's pages in Chromium (`make browser`). Prints one JSON line with the
results of each part, the bars (required values), and the bars that the results miss. `--write`
stores this line. docs/reference/benchmarks.md explains each result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser as Running
from playwright.sync_api import Page
from tests.browser import chromium, installed
from tests.browser.process import ApiProcess, api_process
from tests.browser.seeding import Large
from tests.browser.service import Service
from tests.browser.signing_in import SignedIn, sign_in

from .portal_parts import live, watchers, weights
from .service_parts.machine import facts

RESULT = Path(__file__).parent / "results" / "portal.json"
Figures = dict[str, Any]  # Any: JSON


class Bench:
    """Service, browser and session that all parts use."""

    def __init__(self, service: Service, api: ApiProcess, running: Running) -> None:
        self.service, self.api, self.running = service, api, running
        self.state: SignedIn = sign_in(running, service)
        self._step = 200_000

    @property
    def cookie(self) -> str:
        return "; ".join(f"{item['name']}={item['value']}" for item in self.state["cookies"])

    def steps(self, count: int) -> int:
        """Reserve `count` unused step numbers, and return the first one."""
        self._step += count
        return self._step - count

    @contextmanager
    def page(self) -> Iterator[Page]:
        context = chromium.new_context(
            self.running, base_url=self.service.url, storage_state=self.state
        )
        yield context.new_page()
        context.close()


def pages(bench: Bench) -> Figures:
    found = {
        visit.name: weights.measure_page(bench.running, bench.service, bench.state, visit)
        for visit in weights.visits()
    }
    worst: Figures = {
        name: max(page[name] for page in found.values())
        for name in ("first_kb", "first_requests", "later_kb", "main_thread_seconds")
    }
    worst["layout_shift"] = max(page["layout_shift"] for page in found.values())
    worst["jobs_first_kb"] = found["jobs"]["first_kb"]
    return worst | weights.scripts() | {"pages": found}


def server(bench: Bench) -> Figures:
    paths = [visit.address(bench.service) for visit in weights.visits() if visit.caller == "ann"]
    with httpx.Client(
        base_url=bench.service.url, headers={"cookie": bench.cookie}, trust_env=False
    ) as client:
        found = weights.server_milliseconds(bench.api, client.get, paths)
    return {"server_p95_ms": max(found.values()), "by_page": found}


def latency(bench: Bench) -> Figures:
    with bench.page() as page:
        return live.measure_latency(page, bench.service, 60, bench.steps(60))


def busy(bench: Bench) -> Figures:
    with bench.page() as page:
        first = bench.steps(50_000)
        return live.measure_ten_a_second(page, bench.service, 20, first, many=3_000)


def tabs(bench: Bench) -> Figures:
    with bench.page() as page:
        return {"tabs": live.measure_tabs(page.context, bench.service, 30, bench.steps(1))}


def crowd(bench: Bench) -> Figures:
    first = bench.steps(100)
    return watchers.measure(
        bench.service, bench.api, bench.cookie, watchers=200, seconds=20, first=first
    )


def restart(bench: Bench) -> Figures:
    with bench.page() as page:
        return live.measure_restart(page, bench.service, bench.api, bench.steps(10), 6.0)


PARTS: dict[str, tuple[Callable[[Bench], Figures], dict[str, float]]] = {
    "pages": (pages, weights.BARS),
    "server": (server, weights.BARS),
    "latency": (latency, live.BARS),
    "busy": (busy, live.BARS),
    "tabs": (tabs, {}),
    "crowd": (crowd, watchers.BARS),
    "restart": (restart, live.BARS),
}


def missed(figures: Figures, bars: dict[str, float]) -> dict[str, float]:
    """Return the results that are above their bar (largest allowed value)."""
    return {name: figures[name] for name, bar in bars.items() if figures.get(name, 0) > bar}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.portal", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--write", action="store_true", help=f"store {RESULT.name}")
    arguments = parser.parse_args()
    line: Figures = {"benchmark": "portal", **facts(), "bars": {}, "missed": {}}
    with (
        tempfile.TemporaryDirectory(prefix="tunesmith-benchmark-") as folder,
        api_process(Path(folder), Large()) as (service, api),
        chromium.running(installed.find()) as running,
    ):
        bench = Bench(service, api, running)
        for name in arguments.only:
            measure, bars = PARTS[name]
            line[name] = measure(bench)
            line["bars"] |= {key: bar for key, bar in bars.items() if key in line[name]}
            line["missed"] |= missed(line[name], bars)
            sys.stderr.write(f"{name}: {json.dumps(line[name])}\n")
    print(json.dumps(line))
    if arguments.write:
        RESULT.write_text(json.dumps([line], indent=1) + "\n")
    return 1 if line["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())

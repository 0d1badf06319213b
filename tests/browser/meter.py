"""Figures of a page by the debugging protocol: bytes, requests, CPU, paint, layout shift.

CPU is the time of the page's main thread, not of the clock: other load does not change it much.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

_PAINT = """() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
  shift: new Promise(done => {
    let sum = 0;
    new PerformanceObserver(list => list.getEntries().forEach(entry => sum += entry.value))
      .observe({ type: "layout-shift", buffered: true });
    requestAnimationFrame(() => setTimeout(() => done(sum), 50));
  }),
})"""


@dataclass(kw_only=True)
class Figures:
    """Figures of one visit; set at the end of the `metered` block."""

    bytes: int = 0
    """Bytes received, headers included, without those from the cache."""
    requests: int = 0
    """Requests that the cache did not answer."""
    main_thread_seconds: float = 0.0
    first_paint_ms: float | None = None
    layout_shift: float = 0.0
    heap_bytes: int = 0
    by_address: dict[str, int] = field(default_factory=dict)
    """Received bytes by path."""


@contextmanager
def metered(page: Page) -> Iterator[Figures]:
    """Measure what `page` does in the block: open an address, and wait until it is ready."""
    figures, addresses, cached = Figures(), dict[str, str](), set[str]()
    session = page.context.new_cdp_session(page)

    def sent(event: dict[str, Any]) -> None:  # Any: an event of the protocol
        addresses[event["requestId"]] = event["request"]["url"]

    def received(event: dict[str, Any]) -> None:
        if event["response"].get("fromDiskCache"):
            cached.add(event["requestId"])

    def finished(event: dict[str, Any]) -> None:
        key = event["requestId"]
        address, size = addresses.get(key, ""), int(event["encodedDataLength"])
        if key in cached or not address.startswith("http"):
            return
        figures.requests += 1
        figures.bytes += size
        path = address.split("/", 3)[-1]
        figures.by_address[path] = figures.by_address.get(path, 0) + size

    session.on("Network.requestWillBeSent", sent)
    session.on("Network.requestServedFromCache", lambda event: cached.add(event["requestId"]))
    session.on("Network.responseReceived", received)
    session.on("Network.loadingFinished", finished)
    session.send("Network.enable")
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _metrics(session)
    yield figures
    after = _metrics(session)
    # A navigation to another process starts its clock from 0.
    begun = before["TaskDuration"] if after["TaskDuration"] >= before["TaskDuration"] else 0.0
    figures.main_thread_seconds = round(after["TaskDuration"] - begun, 3)
    figures.heap_bytes = int(after["JSHeapUsedSize"])
    seen = page.evaluate(
        f"async () => {{ const x = ({_PAINT})(); x.shift = await x.shift; return x }}"
    )
    figures.first_paint_ms, figures.layout_shift = seen["paint"], round(seen["shift"], 4)
    session.detach()


def main_thread(session: Any) -> float:  # Any: a CDPSession
    """Return the CPU seconds of the page's main thread, after `Performance.enable` with the time
    domain threadTicks."""
    return _metrics(session)["TaskDuration"]


def _metrics(session: Any) -> dict[str, float]:  # Any: a CDPSession
    listed = session.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: metric["value"] for metric in listed}

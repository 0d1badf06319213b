"""Measure live pages: delay from storing an event to painting it, CPU and heap at ten events per
second, many tabs, and a restart of the API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.browser.meter import main_thread
from tests.browser.process import ApiProcess
from tests.browser.service import Service

from tunesmith_schema import EventKind, RunEvent
from tunesmith_server.services.training import events, jobs

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

BARS = {
    "latency_p50_s": 0.5, "latency_p95_s": 1.0, "core_share": 0.1, "heap_growth": 0.1,
    "tabs": 30, "connections": 1, "back_seconds": 3.0,
}  # fmt: skip
TOTAL = 1_000_000
_OBSERVE = """() => {
  window.painted = [];
  const figure = document.querySelector("[data-figure=train_loss]");
  new MutationObserver(() => {
    const text = figure.textContent;
    requestAnimationFrame(() => setTimeout(() => window.painted.push([text, Date.now() / 1000])));
  }).observe(figure, { childList: true, characterData: true, subtree: true });
}"""


def value_of(step: int) -> float:
    """Return a loss with four significant digits that identifies the step."""
    return float(f"{1 + step % 9000 / 1000:.3f}")


def tell(service: Service, job_id: str, *steps: int) -> float:
    """Store metrics of `steps` in the same way as a worker's report. Return the time of storage."""
    with service.database.write.begin() as session:
        job = jobs.lock(session, job_id)  # the API may add events, too
        for step in steps:
            data = {"step": step, "total_steps": TOTAL, "train_loss": value_of(step)}
            data |= {"grad_norm": 1.0, "learning_rate": 1e-4}
            told = RunEvent.model_validate(
                {"source_seq": step, "created_at": 1.0, "kind": "metrics", "data": data}
                | {"message": f"step {step}"}
            )
            events.store_metrics(session, job, told)
            events.add(session, job, told.message, kind=EventKind.METRICS, data=told.data)
    return time.time()


def open_job(page: Page, service: Service, what: str = "running") -> str:
    """Open the page of a job and wait until it is live. Return the job's id."""
    job_id = service.world.jobs[what]
    page.goto(f"/portal/jobs/{job_id}")
    page.wait_for_selector("ts-chart[data-main] .uplot")
    page.wait_for_selector("#live[data-state=on]")
    return job_id


def measure_latency(page: Page, service: Service, events_told: int, first: int) -> dict[str, float]:
    """Return the delay from the commit of an event until the page paints it."""
    job_id = open_job(page, service)
    page.evaluate(_OBSERVE)
    stored = {}
    for step in range(first, first + events_told):
        stored[f"{value_of(step):g}"] = tell(service, job_id, step)
        time.sleep(0.37)
    page.wait_for_timeout(1500)
    seen: list[tuple[str, float]] = page.evaluate("window.painted")
    painted = {text: moment for text, moment in reversed(seen)}
    delays = sorted(max(0.0, painted[text] - stored[text]) for text in stored if text in painted)
    assert len(delays) >= 0.8 * events_told, (len(delays), events_told)
    return {
        "latency_events": len(delays),
        "latency_p50_s": round(delays[len(delays) // 2], 3),
        "latency_p95_s": round(delays[int(len(delays) * 0.95)], 3),
    }


def measure_ten_a_second(
    page: Page, service: Service, seconds: int, first: int, *, many: int = 0
) -> dict[str, float]:
    """Send ten events a second for `seconds`, then send `many` events in groups of 100. Return the
    CPU share of the page's main thread at ten events a second, and the growth of the page's
    heap."""
    job_id, session = open_job(page, service), page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    step = first
    for _ in range(5):  # the first draws compile
        tell(service, job_id, step)
        step += 1
        page.wait_for_timeout(300)
    heaps = [_heap(session)]
    before, began = main_thread(session), time.monotonic()
    while time.monotonic() - began < seconds:
        tell(service, job_id, step)
        step += 1
        page.wait_for_timeout(max(0.0, 1000 * (began + (step - first - 5) / 10 - time.monotonic())))
    share = (main_thread(session) - before) / (time.monotonic() - began)
    heaps.append(_heap(session))
    while step < first + many:
        tell(service, job_id, *range(step, step + 100))
        step += 100
        page.wait_for_timeout(400)
        if (step - first) // 100 % 20 == 0:
            heaps.append(_heap(session))
    heaps.append(_heap(session))
    return {
        "events": step - first,
        "core_share": round(share, 3),
        "heap_mb": round(heaps[0] / 1e6, 1),
        "heap_growth": round(heaps[-1] / heaps[len(heaps) // 2 - 1] - 1, 3),
    }


def _heap(session: Any) -> int:  # Any: a CDPSession
    session.send("HeapProfiler.collectGarbage")
    return int(session.send("Runtime.getHeapUsage")["usedSize"])


def measure_tabs(context: BrowserContext, service: Service, tabs: int, first: int) -> int:
    """Open many tabs of a job. Return the number of tabs that show a new event."""
    pages = [context.new_page() for _ in range(tabs)]
    for page in pages:
        job_id = open_job(page, service)
    tell(service, job_id, first)
    shown = f"{value_of(first):g}"
    for page in pages:
        page.locator("[data-figure=train_loss]", has_text=shown).wait_for()
    return len(pages)


def measure_restart(
    page: Page, service: Service, api: ApiProcess, first: int, away_seconds: float
) -> dict[str, float]:
    """Kill the API, store events, and start the API again. Return the time until the page is live
    again, and the numbers of missing and doubled steps in the page's curve."""
    job_id = open_job(page, service)
    page.evaluate(_RECORD)
    tell(service, job_id, first)
    page.locator("[data-figure=train_loss]", has_text=f"{value_of(first):g}").wait_for()
    api.kill()
    page.wait_for_selector("#live[data-state=lost]")
    tell(service, job_id, first + 1, first + 2)
    time.sleep(away_seconds)
    back = api.start()
    page.wait_for_selector("#live[data-state=on]")
    seconds = time.time() - back
    last = first + 3
    tell(service, job_id, last)
    page.locator("[data-figure=train_loss]", has_text=f"{value_of(last):g}").wait_for()
    steps: list[int] = page.evaluate("window.steps")
    return {
        "back_seconds": round(seconds, 2),
        "missing": len(set(range(first, last + 1)) - set(steps)),
        "doubled": len(steps) - len(set(steps)),
    }


_RECORD = """() => {
  window.steps = [];
  document.addEventListener("ts:live", ({ detail }) => {
    if (detail.kind !== "event" || detail.data.kind !== "metrics") return;
    window.steps.push(detail.data.data.step);
  });
}"""

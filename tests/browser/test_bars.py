"""Bars of the portal that a busy machine does not blur: weight, requests, CPU, layout shift, live
pages, many tabs. `python -m benchmarks.portal` measures all of them at full size."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from benchmarks.portal_parts import live, watchers, weights
from sqlalchemy import event, func, select
from sqlalchemy.exc import OperationalError

from tunesmith_server.models import JobRow
from tunesmith_server.portal import live as portal_live

from ..server.absent_store import store_away
from . import chromium
from .conftest import OpenPage
from .meter import metered
from .pages import VISITS, Visit
from .process import ApiProcess, api_process
from .service import Service, new_settings, serving
from .signing_in import SignedIn, sign_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running

pytestmark = pytest.mark.browser
BARS = weights.BARS
TABS = 10
"""More than the 6 connections that Chromium opens to a server. The benchmark opens 30."""


@pytest.mark.parametrize("visit", weights.visits(), ids=lambda visit: str(visit.name))
def test_a_page_is_light_quick_and_still(
    visit: Visit, running_chromium: Running, service: Service, signed_in: SignedIn
) -> None:
    figures = weights.measure_page(running_chromium, service, signed_in, visit)
    most = BARS["jobs_first_kb" if visit.name == "jobs" else "first_kb"]
    assert figures["first_kb"] <= most, figures
    assert figures["first_requests"] <= BARS["first_requests"], figures
    assert figures["later_kb"] <= BARS["later_kb"], figures
    assert figures["main_thread_seconds"] <= 2 * BARS["main_thread_seconds"], figures
    assert figures["layout_shift"] == BARS["layout_shift"], figures


def test_nothing_moves_on_a_slow_cpu(
    running_chromium: Running, service: Service, signed_in: SignedIn
) -> None:
    """Without the page's link `expect`, Chromium paints parts of about half of these pages."""
    visit = next(visit for visit in VISITS if visit.name == "model")
    context = chromium.new_context(running_chromium, base_url=service.url, storage_state=signed_in)
    for _ in range(6):
        page = context.new_page()
        slow = context.new_cdp_session(page)
        slow.send("Emulation.setCPUThrottlingRate", {"rate": 12})
        with metered(page) as figures:
            visit.open(page, service)
        assert figures.layout_shift == BARS["layout_shift"], figures
        page.close()
    context.close()


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(new_settings(tmp_path_factory.mktemp("bars"))) as started:
        yield started


@pytest.mark.timing
def test_an_event_is_painted_within_a_second(running_chromium: Running, own: Service) -> None:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    figures = live.measure_latency(context.new_page(), own, 12, 1000)
    context.close()
    assert figures["latency_p50_s"] <= 2 * live.BARS["latency_p50_s"], figures
    assert figures["latency_p95_s"] <= 3 * live.BARS["latency_p95_s"], figures


@pytest.mark.timing
def test_ten_events_a_second_cost_a_tenth_of_a_core(
    running_chromium: Running, own: Service
) -> None:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    figures = live.measure_ten_a_second(context.new_page(), own, 8, 2000)
    context.close()
    assert figures["core_share"] <= 2 * live.BARS["core_share"], figures
    assert figures["heap_growth"] <= 0.5, figures


def test_many_tabs_are_live_over_one_connection(
    running_chromium: Running, own: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = {"now": 0, "most": 0}
    stream = portal_live._stream

    async def counted(*arguments: Any) -> AsyncIterator[bytes]:
        streams["now"] += 1
        streams["most"] = max(streams["most"], streams["now"])
        try:
            async for piece in stream(*arguments):
                yield piece
        finally:
            streams["now"] -= 1

    monkeypatch.setattr(portal_live, "_stream", counted)
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    assert live.measure_tabs(context, own, TABS, 9_001) == TABS
    assert streams["now"] == 1
    assert streams["most"] <= 2, "a new topic replaces the stream"
    context.close()


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Service, ApiProcess]]:
    with api_process(tmp_path_factory.mktemp("killable")) as started:
        yield started


def test_an_api_that_was_killed_is_live_again_and_no_step_is_lost(
    running_chromium: Running, killable: tuple[Service, ApiProcess]
) -> None:
    service, api = killable
    state = sign_in(running_chromium, service)
    context = chromium.new_context(running_chromium, base_url=service.url, storage_state=state)
    figures = live.measure_restart(context.new_page(), service, api, 1000, 4.0)
    context.close()
    assert (figures["missing"], figures["doubled"]) == (0, 0), figures
    assert figures["back_seconds"] <= 2 * live.BARS["back_seconds"], figures


def test_a_form_keeps_its_text_while_the_api_is_away(
    running_chromium: Running, killable: tuple[Service, ApiProcess]
) -> None:
    service, api = killable
    state = sign_in(running_chromium, service)
    context = chromium.new_context(running_chromium, base_url=service.url, storage_state=state)
    page = context.new_page()
    page.goto("/portal/jobs/new")
    page.wait_for_selector("#ready")
    page.locator("#f-model").fill("tiny-llama")
    api.kill()
    page.locator("#f-suffix").fill("kept")
    page.locator("#notice", has_text="does not answer").wait_for()
    api.start()
    page.locator("#f-training_file").select_option(service.world.files["train"])
    page.locator("#ready", has_text="would accept").wait_for()
    assert page.locator("#f-suffix").input_value() == "kept"
    assert page.locator("#notice").is_hidden()
    context.close()


@pytest.mark.timing
def test_watchers_cost_the_api_little(
    running_chromium: Running, killable: tuple[Service, ApiProcess]
) -> None:
    service, api = killable
    cookies = sign_in(running_chromium, service)["cookies"]
    cookie = "; ".join(f"{item['name']}={item['value']}" for item in cookies)
    figures = watchers.measure(service, api, cookie, watchers=100, seconds=6, first=3000)
    assert figures["least_frames"] >= 12, figures
    assert figures["core_share_above_idle"] <= 2 * watchers.BARS["core_share_above_idle"], figures
    assert figures["memory_growth_mb"] <= watchers.BARS["memory_growth_mb"], figures


@contextmanager
def database_away(service: Service) -> Iterator[None]:
    """Fail each statement, as it does while the server of the database is away."""

    def fail(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, sqlite3.OperationalError("unable to open database"))

    engines = {service.database.engine, service.database.read.kw["bind"]}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", fail)
    yield
    for engine in engines:
        event.remove(engine, "before_cursor_execute", fail)


def test_what_a_page_shows_stays_while_the_database_is_away(
    page_of: OpenPage, service: Service
) -> None:
    page, watch = page_of()
    watch.expected = {500, 503}
    page.goto("/portal/jobs")
    page.wait_for_selector("#live[data-state=on]")
    rows = page.locator("#rows tr")
    shown = rows.count()
    with database_away(service):
        page.locator("input[name=q]").first.fill("night-run")
        page.locator("#notice:not([hidden])").wait_for()
        assert rows.count() == shown
    page.locator("input[name=q]").first.fill("night-ru")
    page.wait_for_url("**q=night-ru&**")
    page.locator("#notice").wait_for(state="hidden")
    assert rows.count() == 1


def test_rows_appear_by_themselves_when_the_store_is_back(
    page_of: OpenPage, service: Service
) -> None:
    page, watch = page_of()
    watch.expected = {503}
    with store_away():
        page.goto(f"/portal/data/{service.world.files['train']}")
        page.locator("#notice", has_text="storage failed or did not answer").wait_for()
        assert page.locator("#row-list").count() == 1
        assert page.locator("h1", has_text="support-train").is_visible()
    page.wait_for_selector(".data-row")
    page.locator("#notice").wait_for(state="hidden")


def test_a_double_click_makes_one_job(running_chromium: Running, own: Service) -> None:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    page = context.new_page()
    page.goto("/portal/jobs/new")
    page.wait_for_selector("#ready")
    page.locator("#f-model").fill("tiny-llama")
    page.locator("#f-training_file").select_option(own.world.files["train"])
    page.locator("#f-suffix").fill("clicked-twice")
    page.locator("#ready", has_text="would accept").wait_for()
    page.locator("#start").dblclick()
    page.wait_for_selector("#head")
    with own.database.read() as session:
        query = select(func.count()).select_from(JobRow).where(JobRow.suffix == "clicked-twice")
        assert session.scalar(query) == 1
    context.close()

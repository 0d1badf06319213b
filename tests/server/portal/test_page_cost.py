"""CPU time of the server for each page, with 10,000 jobs, 100,000 steps and 10,000 samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tunesmith_server.portal.pages import all_pages
from tunesmith_server.services import keys

from ...browser.seeding import Large, World, fill, fill_large
from ...cpu_time import cpu_p95, cpu_seconds
from ..actors import Server
from .browser import Browser, signed_in

MOST_SECONDS = 0.06
"""Bar of the 95th percentile. The client's own time counts too."""
TIMES = 20
ENOUGH = 5
"""Number of requests after which a page is within the bar if each of them was."""
DOWNLOADS = (".csv", "/files/{file_id}", "/weights/{adapter_id}")
"""Ends of addresses that send whole files or whole lists."""
SEARCHES = ("q=nothing", "q=run-7", "state=failed", "model=none", "method=reinforcement")
MOST_SEARCH_SECONDS = 0.2


@pytest.fixture
def world(server: Server) -> World:
    with server.database.write.begin() as session:
        owner = keys.authenticate(session, server.user.headers["authorization"]).key_id
    assert owner is not None
    made = fill(server.settings, server.database, server.storage, owner)
    fill_large(server.database, server.storage, made, Large())
    return made


def addresses(world: World) -> Iterator[str]:
    """Yield the address of each page, of pages of a job for both long jobs, and of comparisons of
    these jobs."""
    both = ",".join(world.jobs[name] for name in ("running", "reinforcement"))
    for page in all_pages():
        if page.method != "GET" or page.is_public or page.path.endswith(DOWNLOADS):
            continue
        for what in ("running", "reinforcement") if "{job_id}" in page.path else ("",):
            values: dict[str, Any] = {"file_id": world.files["train"], "model": world.models[0]}
            path = page.path.replace(":path}", "}")
            if path.startswith("/portal/compare"):
                path += f"?jobs={both}"
            values["job_id"] = world.jobs[what] if what else ""
            try:
                yield path.format_map(values)
            except KeyError:
                continue  # a thing that the world does not have


def cost_of(browser: Browser, path: str, bar: float = MOST_SECONDS) -> float:
    """Return the CPU time of a page after a first request, which fills caches: the 95th percentile,
    or the maximum of a few requests if it is within the bar."""
    assert browser.get(path).status_code in (200, 303), path
    call = partial(browser.get, path)
    largest = max(cpu_seconds(call) for _ in range(ENOUGH))
    return largest if largest < bar else cpu_p95([call] * TIMES, bar)


@pytest.mark.timing
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_pages_and_searches_of_a_large_service_cost_little(server: Server, world: World) -> None:
    browser = signed_in(server)
    costs = {path: cost_of(browser, path) for path in addresses(world)}
    assert len(costs) >= 10
    assert {path: cost for path, cost in costs.items() if cost > MOST_SECONDS} == {}, costs
    searches = {
        query: cost_of(browser, f"/portal/jobs?{query}", MOST_SEARCH_SECONDS) for query in SEARCHES
    }
    assert max(searches.values()) < MOST_SEARCH_SECONDS, searches
    searches = {
        query: cost_of(browser, f"/portal/models?{query}")
        for query in ("q=nothing", "q=run-7", "base=base-7", "kind=full", "checkpoints=1")
    }
    assert max(searches.values()) < MOST_SECONDS, searches
    job = f"/portal/jobs/{world.jobs['running']}"
    zoom = f"{job}/curves?names=train_loss,grad_norm,learning_rate&from=40000&to=41000"
    assert cost_of(browser, zoom) < MOST_SECONDS

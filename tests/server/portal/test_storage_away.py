"""Pages while the store of files is away: pages that need no file work, the others say what failed,
and all pages work again as soon as the store is back."""

from __future__ import annotations

import pytest

from tunesmith_server.services import keys

from ...browser.seeding import World, fill
from ..absent_store import store_away
from ..actors import Server
from .browser import signed_in
from .page_checks import Document, check_page

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def world(server: Server) -> World:
    with server.database.write.begin() as session:
        owner = keys.authenticate(session, server.user.headers["authorization"]).key_id
    return fill(server.settings, server.database, server.storage, owner)


def without_files(world: World) -> list[str]:
    """Return pages that need no file, and pages whose parts with files are loaded afterwards."""
    job, running = world.jobs["reinforced"], world.jobs["running"]
    return [
        *("/portal", "/portal/jobs", "/portal/data", "/portal/models", "/portal/workers"),
        *("/portal/screen", "/portal/settings", "/portal/playground", "/portal/jobs/new"),
        *(f"/portal/jobs/{job}", f"/portal/jobs/{running}", f"/portal/jobs/{job}/links"),
        f"/portal/compare?jobs={world.jobs['reinforcement']},{job}",
        *(f"/portal/data/{world.files['train']}", f"/portal/data/{world.files['bad']}"),
        f"/portal/models/{world.results['succeeded']}",
        world.links["running"],
    ]


def with_files(world: World) -> list[str]:
    """Return pages and parts that read files."""
    job = world.jobs["reinforced"]
    return [
        f"/portal/data/{world.files['train']}/rows",
        f"/portal/data/{world.files['train']}/rows.csv",
        f"/portal/data/first?training_file={world.files['train']}&file={world.files['train']}",
        f"/portal/jobs/{job}/completions",
        f"/portal/jobs/{job}/completions?row=2",
        f"/portal/jobs/{job}/completions/part",
        f"/portal/compare/completions?jobs={world.jobs['reinforcement']},{job}",
        f"/portal/data/{world.files['train']}/content",
    ]


def test_pages_say_that_the_store_is_away_and_work_again_afterwards(
    server: Server, world: World
) -> None:
    browser = signed_in(server)
    whole, failing = without_files(world), with_files(world)
    before = {path: browser.get(path).status_code for path in (*whole, *failing)}
    assert set(before.values()) == {200}, {at: code for at, code in before.items() if code != 200}
    with store_away():
        for path in whole:
            check_page(browser.page(path))
        for path in failing:
            for headers in ({}, {"hx-request": "true"}):
                reply = browser.get(path, headers=headers)
                assert reply.status_code == 503, (path, headers, reply.status_code)
                [failed] = [
                    item
                    for item in Document(reply.text).all("div")
                    if "failed" in item.attributes.get("class", "").split()
                ]
                for said in ("storage failed or did not answer", "Repeat the request", "Code"):
                    assert said in failed.text, (path, failed.text)
                assert "s3://" not in reply.text, "the address of the store is for the operator"
    assert {path: browser.get(path).status_code for path in before} == before

"""Models in a browser: found and downloaded by keyboard, and new ones appear without a reload."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import inspect

from tunesmith_server.core.database import Base
from tunesmith_server.models import AdapterRow, JobRow

from .conftest import OpenPage
from .service import Service

pytestmark = pytest.mark.browser
NEW = "ft:tiny-llama:default:fresh:00000001"


def test_a_model_is_found_and_downloaded_by_keyboard(page_of: OpenPage, service: Service) -> None:
    page, watch = page_of()
    name = service.world.results["reinforced"]
    page.goto("/portal/jobs")
    page.wait_for_selector("#jobs tbody tr")
    page.keyboard.press("Control+k")
    page.keyboard.type(name)
    found = page.locator(f"#found a[href*='/portal/models/']:text-is('{name}')")
    found.wait_for()
    while page.evaluate("document.activeElement.getAttribute('href')") != (
        found.get_attribute("href")
    ):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_selector(".verdict .num")
    with page.expect_download() as download:
        page.keyboard.press("d")
    with tarfile.open(download.value.path()) as archive:
        names = archive.getnames()
    assert names == ["adapter_config.json", "adapter_model.safetensors", "verification.json"]
    watch.check()


@pytest.mark.parametrize("path", ["/portal/models", "/portal/workers", "/portal"])
def test_rows_of_lists_are_reached_and_opened_by_keyboard(page_of: OpenPage, path: str) -> None:
    page, watch = page_of()
    page.goto(path)
    rows = page.locator("[data-rows] :is(tr, li):has(a)")
    first, second = (rows.nth(at).locator("a").first.get_attribute("href") for at in (0, 1))
    for key, expected in (("j", first), ("j", second), ("k", first), ("j", second)):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.getAttribute('href')") == expected, key
    page.keyboard.press("o")
    page.wait_for_url(lambda url: url.endswith(str(second)))
    watch.check()


@pytest.fixture
def job_id(service: Service) -> Iterator[str]:
    """Id of a job that the test adds; it is deleted afterwards, with its model."""
    name = f"ftjob-{'f' * 24}"
    yield name
    with service.database.write.begin() as session:
        for row in (session.get(AdapterRow, "adp-fresh"), session.get(JobRow, name)):
            if row is not None:
                session.delete(row)
                session.flush()


def test_a_new_model_appears_without_a_reload(
    page_of: OpenPage, service: Service, job_id: str
) -> None:
    page, watch = page_of()
    page.goto("/portal/models?q=tiny")
    page.wait_for_selector("#live[data-state=on]")
    page.evaluate("window.isSame = true")
    with service.database.write.begin() as session:
        job = session.get_one(JobRow, service.world.jobs["succeeded"])
        model = session.get_one(AdapterRow, job.adapter_id)
        now = {"created_at": time.time(), "finished_at": time.time()}
        session.add(JobRow(**_values(job) | now | {"id": job_id, "suffix": "fresh"}))
        session.flush()
        made = {"id": "adp-fresh", "model": NEW, "job_id": job_id, "created_at": time.time()}
        session.add(AdapterRow(**_values(model) | made))
    page.wait_for_selector(f"#models a:text-is('{NEW}')")
    assert page.evaluate("window.isSame") is True
    watch.check()


def _values(row: Base) -> dict[str, object]:
    attributes = inspect(type(row)).column_attrs
    return {column.key: getattr(row, column.key) for column in attributes}

"""Data sets in a browser: upload by key, progress, verdict, rows, search."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tunesmith_schema import FileValidation
from tunesmith_server.models import FileRow
from tunesmith_server.services.data import files

from . import chromium
from .service import Service, new_settings, serving
from .signing_in import sign_in
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import FileChooser, Page

pytestmark = pytest.mark.browser
CHAT = [{"role": "user", "content": "3 plus 3?"}, {"role": "assistant", "content": "6"}]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module, to which the tests upload files."""
    with serving(new_settings(tmp_path_factory.mktemp("data"))) as started:
        yield started


@pytest.fixture
def watched(running_chromium: Running, own: Service) -> Iterator[tuple[Page, Watch]]:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    watch = Watch(context, own.url)
    yield context.new_page(), watch
    context.close()
    watch.check()


@pytest.fixture
def page(watched: tuple[Page, Watch]) -> Page:
    return watched[0]


@pytest.fixture
def watch(watched: tuple[Page, Watch]) -> Watch:
    return watched[1]


def open_list(page: Page) -> None:
    page.goto("/portal/data")


def lines_of(*texts: str) -> bytes:
    return b"".join(
        json.dumps({"messages": [*CHAT, {"role": "user", "content": text}]}).encode() + b"\n"
        for text in texts
    )


def validate(service: Service, filename: str, **found: Any) -> None:
    """Store the result of a validation, as a light worker's report does. Any: JSON."""
    with service.database.write.begin() as session:
        [row] = session.query(FileRow).filter_by(filename=filename)
        files.record_validation(row, FileValidation(**{"ok": True, "rows": 3, **found}))


def test_a_file_is_uploaded_by_key_and_its_verdict_arrives(page: Page, own: Service) -> None:
    open_list(page)
    choosers: list[FileChooser] = []
    page.on("filechooser", lambda chooser: choosers.append(chooser))
    for _ in range(40):  # until the module with the keys is loaded
        if not choosers:
            page.keyboard.press("u")
            page.wait_for_timeout(500)
    content = lines_of("first", "second", "third")
    choosers[0].set_files(
        {"name": "by-key.jsonl", "mimeType": "application/jsonl", "buffer": content}
    )
    page.locator("h1", has_text="by-key.jsonl").wait_for()
    page.locator("#state", has_text="Being read").wait_for()
    page.locator(".data-row").nth(2).wait_for()
    validate(own, "by-key.jsonl", format="messages", usable_for=["supervised"])
    page.locator("#verdict", has_text="Usable for supervised.").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("second")
    page.locator("#row-list:not(:has-text('first'))").wait_for()
    assert page.locator(".data-row").count() == 1
    open_list(page)
    row = page.locator("#rows tr", has_text="by-key.jsonl")
    assert "messages" in row.inner_text()


def test_two_files_are_compared_on_the_page(page: Page, own: Service) -> None:
    page.goto(f"/portal/data/{own.world.files['train']}")
    page.locator(".bins").wait_for()
    page.locator("#h-duplicates + p", has_text="239 of 240 rows are equal").wait_for()
    page.locator("#with").select_option(label="support-valid.jsonl")
    page.locator("#overlap", has_text="240 rows of this file (100 %) are in the other").wait_for()
    page.locator("#overlap a", has_text="row 1").first.wait_for()


def test_a_refused_upload_says_why_and_the_page_stays(page: Page, watch: Watch) -> None:
    watch.expected = {400}
    open_list(page)
    page.locator("#file").set_input_files(
        {"name": "empty.jsonl", "mimeType": "application/jsonl", "buffer": b""}
    )
    page.locator("[data-failed]", has_text="'empty.jsonl' is empty").wait_for()
    page.locator("#file").evaluate("(input) => { input.dataset.most = 3; }")
    page.locator("#file").set_input_files(
        {"name": "large.jsonl", "mimeType": "application/jsonl", "buffer": b"1234"}
    )
    page.locator("[data-failed]", has_text="too large for this page").wait_for()
    assert page.locator("h1").inner_text() == "Data sets"


def test_a_dropped_file_is_uploaded(page: Page) -> None:
    open_list(page)
    drop = """(box) => {
      const data = new DataTransfer();
      data.items.add(new File(['{"text": "a"}\\n'], "dropped.jsonl"));
      for (const kind of ["dragover", "drop"])
        box.dispatchEvent(new DragEvent(kind, { bubbles: true, dataTransfer: data }));
    }"""
    page.locator("[data-drop]").evaluate(drop)
    page.locator("h1", has_text="dropped.jsonl").wait_for()

"""The playground in a browser: two models side by side by keyboard alone, stop, hostile text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tunesmith_server.inference import process

from ..server import fake_inference
from . import axe, chromium, installed
from .seeding import PWNED
from .service import Service, new_settings, serving
from .signing_in import sign_in
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser
HOSTILE = f"<img src=x onerror=window.{PWNED}=1> a\u202eb"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service of this module, whose models repeat the prompt."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "COMMAND", (sys.executable, "-S", fake_inference.__file__))
        with serving(new_settings(tmp_path_factory.mktemp("playground"))) as started:
            yield started


@pytest.fixture
def page(running_chromium: Running, own: Service) -> Iterator[Page]:
    state = sign_in(running_chromium, own)
    context = chromium.new_context(running_chromium, base_url=own.url, storage_state=state)
    watch = Watch(context, own.url)
    yield context.new_page()
    context.close()
    watch.check()


def answers(page: Page) -> list[str]:
    return list(page.locator(".answer:not([hidden]) .turns").all_inner_texts())


def test_two_models_answer_side_by_side_by_keyboard_alone(
    page: Page, own: Service, browser_files: installed.Browser, tmp_path: Path
) -> None:
    page.goto("/portal/jobs")
    page.wait_for_selector("#rows")
    page.keyboard.press("g")
    page.keyboard.press("p")
    page.wait_for_selector("#playground")
    page.locator("#same").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("one two")
    page.wait_for_url("**user=one+two**")
    assert "printf %s 'one two' | tunesmith chat" in page.locator("#same").text_content()
    page.keyboard.press("Control+Enter")
    page.locator(".answer:nth-child(2) [role=status]", has_text="ended by itself").wait_for()
    names = page.locator(".answer:not([hidden]) h2").all_inner_texts()
    assert names[0] == "tiny-llama"
    assert names[1] in own.world.models
    assert [text.split() for text in answers(page)] == [["one", "two"] * 2] * 2
    assert page.locator("#user").input_value() == ""

    # Tokens have one stop of the Tab key; arrow keys go on.
    for _ in range(30):
        if page.evaluate("document.activeElement.textContent") == "one ":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "two "
    assert page.locator(".detail").first.inner_text() == "“two ” 80 %, “other” 10 %"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Keep as better"
    page.keyboard.press("Enter")
    page.locator("#pairs", has_text="No other answer").wait_for()

    # The conversation goes on; another second model starts its own.
    page.locator("#model2").fill("tiny-llama")
    page.locator("#user").focus()
    page.keyboard.type("slow")
    page.keyboard.press("Control+Enter")
    page.locator(".answer:nth-child(2) .said", has_text="word word").wait_for()
    page.keyboard.press("Escape")
    page.locator(".answer:nth-child(2) [role=status]", has_text="Stopped").wait_for()
    shown = answers(page)
    assert shown[0].split()[:5] == ["one", "two", "one", "two", "slow"]
    assert shown[1].split()[:2] == ["slow", "word"]
    assert page.locator("#stop").is_disabled()
    assert axe.violations(page, browser_files.axe) == []


def test_an_answer_comes_into_view_on_a_dark_phone_without_a_pointer(
    running_chromium: Running, own: Service, browser_files: installed.Browser
) -> None:
    context = chromium.new_context(
        running_chromium, size="phone", theme="dark", base_url=own.url,
        storage_state=sign_in(running_chromium, own),
    )  # fmt: skip
    page = context.new_page()
    page.goto("/portal/playground")
    page.wait_for_selector("#playground")
    page.keyboard.press("/")
    page.keyboard.type("one two")
    page.keyboard.press("Control+Enter")
    page.locator(".answer:nth-child(2) [role=status]", has_text="ended by itself").wait_for()
    page.locator("#over").wait_for()  # the prompt is cleared before
    said = page.locator(".answer:nth-child(1) .said").bounding_box()
    assert said is not None
    assert 0 <= said["y"] <= chromium.SIZES["phone"][1] - said["height"], said
    page.keyboard.type("three")
    assert page.locator("#user").input_value() == "three"
    typed = page.locator("#user:focus").bounding_box()
    assert typed is not None
    assert 0 < typed["y"] + typed["height"] <= chromium.SIZES["phone"][1], typed
    for turn in range(1, 6):
        page.locator("#user").fill("\n".join("three four five six"))
        page.keyboard.press("Control+Enter")
        page.locator(".answer:nth-child(1) .said:not([aria-busy])").nth(turn).wait_for()
        page.locator("#stop:disabled").wait_for()
    said = page.locator(".answer:nth-child(1) .said").last.bounding_box()
    assert said is not None
    assert 0 <= said["y"] <= chromium.SIZES["phone"][1] - said["height"], said
    assert axe.violations(page, browser_files.axe) == []
    context.close()


def test_four_streams_leave_connections_for_other_tabs(page: Page, own: Service) -> None:
    models = "&".join(["model=tiny-llama"] * 4)
    page.goto(f"/portal/playground?{models}")
    page.wait_for_selector("#playground")
    page.locator("#user").fill("slow")
    page.keyboard.press("Control+Enter")
    page.locator(".answer:nth-child(4) .said", has_text="word word").wait_for()
    for _ in range(3):
        other = page.context.new_page()
        other.goto("/portal/jobs")
        other.wait_for_selector("#live[data-state=on]")
    count = page.locator(".answer:nth-child(4) .said span").count
    before = count()
    page.locator(f".answer:nth-child(4) .said span:nth-child({before + 3})").wait_for()
    page.locator("#stop").click()
    page.locator(".answer:nth-child(4) [role=status]", has_text="Stopped").wait_for()


def test_pairs_are_kept_downloaded_and_deleted_and_hostile_text_is_inert(
    page: Page, own: Service, browser_files: installed.Browser
) -> None:
    page.goto("/portal/playground?model=tiny-llama&model=tiny-llama&marks=on")
    page.wait_for_selector("#playground")
    page.locator("#user").fill(HOSTILE)
    page.keyboard.press("Control+Enter")
    page.locator(".answer:nth-child(2) [role=status]", has_text="ended by itself").wait_for()
    assert "a[U+202E]b" in answers(page)[0]
    assert page.locator(".turns img").count() == 0
    assert page.evaluate(f"'{PWNED}' in window") is False

    # One model fails.
    page.locator("#over").click()
    assert page.locator("#user").input_value() == HOSTILE
    page.locator("#model2").fill("none")
    page.keyboard.press("Control+Enter")
    failed = page.locator(".answer:nth-child(2) .failed")
    failed.wait_for()
    assert "No model 'none' on this server." in failed.inner_text()
    assert "Code model_not_found, request req-" in failed.inner_text()
    assert axe.violations(page, browser_files.axe) == []

    tuned = own.world.models[-1]
    page.locator("#model2").fill(tuned)
    page.locator("#user").fill("who")
    page.locator("#over").click()
    page.keyboard.press("Control+Enter")
    page.locator(".answer:nth-child(2) .differs").wait_for()
    page.locator("[data-better]").nth(1).click()
    page.locator("[data-better]").nth(1).click()
    page.locator("#pairs", has_text="1 pair in this browser").wait_for()
    with page.expect_download() as loading:
        page.locator("#download").click()
    assert json.loads(Path(loading.value.path()).read_text()) == {
        "input": {"messages": [{"role": "user", "content": "who"}]},
        "preferred_output": [{"role": "assistant", "content": f"{tuned} "}],
        "non_preferred_output": [{"role": "assistant", "content": "tiny-llama "}],
    }
    page.reload()
    page.locator("#download").wait_for()
    page.locator("#forget").click()
    page.locator("#pairs", has_text="All pairs are deleted").wait_for()
    assert page.locator("#download").is_hidden()

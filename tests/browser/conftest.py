"""Fixtures of the browser tests: a seeded service, Chromium, and pages that are watched.

Playwright runs an event loop in the main thread, where `asyncio.run` then fails. So Chromium ends
before the tests of another folder run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from . import chromium, installed
from .callers import Caller
from .service import Service, new_settings, serving
from .signing_in import SignedIn, sign_in
from .watch import Watch

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page

OpenPage = Callable[..., "tuple[Page, Watch]"]
"""Type of the fixture `page_of`."""


@pytest.fixture(scope="session")
def browser_files() -> installed.Browser:
    """Files of the browser. Without one, the test is skipped."""
    try:
        return installed.find()
    except installed.NoBrowser as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="package")
def running_chromium(browser_files: installed.Browser) -> Iterator[Running]:
    with chromium.running(browser_files) as started:
        yield started


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Service with the seeded world. Tests must not change what other tests look at."""
    for name in [name for name in os.environ if name.startswith("TUNESMITH_")]:
        if not name.startswith(("TUNESMITH_TEST_", "TUNESMITH_DEVICE_USE")):
            pytest.fail(f"{name} is set; unset it for the tests")
    with serving(new_settings(tmp_path_factory.mktemp("portal"))) as started:
        yield started


@pytest.fixture(scope="package")
def signed_in(running_chromium: Running, service: Service) -> SignedIn:
    """Session of the user `ann`, as Playwright's storage state."""
    return sign_in(running_chromium, service)


@pytest.fixture
def page_of(
    running_chromium: Running, service: Service, request: pytest.FixtureRequest
) -> Iterator[OpenPage]:
    """Function that opens a fresh profile with a blank page, and watches it. Its arguments are
    those of `chromium.new_context`, and `caller`, whose session opens the page. At the end of the
    test, console messages, failed requests and requests to other hosts fail it."""
    contexts, watches = [], []

    def open_page(*, caller: Caller = "ann", **options: Any) -> tuple[Page, Watch]:
        # ann signs in when the first test needs it
        state = request.getfixturevalue("signed_in") if caller == "ann" else service.profile(caller)
        context = chromium.new_context(
            running_chromium, base_url=service.url, storage_state=state, **options
        )
        contexts.append(context)
        watches.append(Watch(context, service.url))
        return context.new_page(), watches[-1]

    yield open_page
    for context in contexts:
        context.close()
    for watch in watches:
        watch.check()

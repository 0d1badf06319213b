"""Signing in to the portal, as a user does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import chromium
from .service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser as Running
    from playwright.sync_api import Page

SignedIn = dict[str, Any]
"""Cookies and stored values of a profile (Playwright's storage state)."""
SIGN_IN = "/portal/sign-in"
KEY_LABEL = "API key"


def enter_key(page: Page, key: str) -> None:
    """Sign in by keyboard and wait for the first page."""
    page.goto(SIGN_IN)
    page.get_by_label(KEY_LABEL).fill(key)
    page.keyboard.press("Enter")
    page.wait_for_url(lambda address: SIGN_IN not in address)


def sign_in(running: Running, service: Service) -> SignedIn:
    """Return the profile of the service's user after signing in."""
    context = chromium.new_context(running, base_url=service.url)
    enter_key(context.new_page(), service.key)
    state: SignedIn = context.storage_state()
    context.close()
    return state

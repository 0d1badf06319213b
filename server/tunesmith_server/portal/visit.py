"""Pages of the portal as functions of a visit. A visit has the request, its caller and a database
session. For each page, `Page.needs` lists the API routes that do the same as the page. A caller may
see a page if identity/policy.py allows the caller to use the API routes in `Page.needs`. When a
page changes data, the audit log names the first API route in `Page.needs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tunesmith_server.api.deps import State
from tunesmith_server.core.principal import Principal
from tunesmith_server.services.sessions import SignedIn

from . import rendering
from .calls import Call
from .security import HEADERS


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Request for a page."""

    request: Request
    state: State
    signed_in: SignedIn | None
    """Caller's sign-in; None on pages that need no sign-in."""
    session: Session
    """Database session, limited to the caller's project. The session is read-only unless the
    request changes data."""
    form: FormData = field(default_factory=FormData)
    reads: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Reads that the audit log must record in addition to the page itself: the API route and the
    parameters of each read."""

    @property
    def principal(self) -> Principal:
        if self.signed_in is None:
            raise RuntimeError("a page without sign-in has no principal")
        return self.signed_in.principal

    @property
    def is_part(self) -> bool:
        """Return True if htmx requests a part of the page."""
        return self.request.headers.get("hx-request") == "true"

    @property
    def is_in_background(self) -> bool:
        """Return True if a script sends the request: htmx, or basics.js for a form."""
        return "hx-request" in self.request.headers

    def query(self, name: str) -> str:
        """Return a parameter of the address; NUL, which PostgreSQL refuses, is left out."""
        return self.request.query_params.get(name, "").replace("\0", "")

    def queries(self, name: str) -> list[str]:
        return [value for value in self.request.query_params.getlist(name) if value]

    def field(self, name: str) -> str:
        """Return a field of the form; empty if it is missing or a file."""
        value = self.form.get(name, "")
        return value if isinstance(value, str) else ""

    def param(self, name: str) -> str:
        return str(self.request.path_params[name])

    def show(
        self,
        template: str,
        *,
        calls: Sequence[Call] = (),
        page_keys: Sequence[tuple[str, str]] = (),
        status: int = 200,
        **context: Any,  # Any: what the template names
    ) -> Response:
        """Render a page. `calls`: API calls that the page's footer shows. `page_keys`: keyboard
        keys with their actions; the key `?` shows them."""
        return rendering.respond(
            self.request,
            template,
            status=status,
            visit=self,
            signed_in=self.signed_in,
            calls=calls,
            page_keys=page_keys,
            origin=str(self.request.base_url).rstrip("/"),
            **context,
        )

    def go(self, path: str) -> Response:
        """Redirect the browser to another page, after a change."""
        if self.is_in_background:
            return Response(status_code=204, headers={**HEADERS, "hx-redirect": path})
        return RedirectResponse(path, 303, HEADERS)


class Refused(Exception):
    """Raised to refuse a change: nothing is stored, and the browser gets `response`."""

    def __init__(self, response: Response) -> None:
        super().__init__("refused")
        self.response = response


PageFunction = Callable[[Visit], Response]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Page of the portal: its address and its function."""

    path: str
    show: PageFunction
    method: str = "GET"
    needs: tuple[str, ...] = ()
    """Routes of the API that do the same as the page, such as `GET /fine_tuning/jobs`. In the audit
    log, an entry for the page has the name of the first route."""
    is_public: bool = False
    """True if the page needs no sign-in."""
    per_minute: int = 0
    """Maximum requests per minute from one client address to pages with this limit; 0 means no
    limit."""
    is_bulk: bool = False
    """True if the page reads or stores contents of files, which may take time.

    A bulk page runs in the thread pool for bulk transfers. If a bulk page only reads, its audit log
    entry is appended afterwards.
    """
    takes_file: bool = False
    """True if the form has a field for a file."""

"""Routes of pages. A route checks sign-in and rights, opens a transaction, writes the audit log and
returns error pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tunesmith_schema import ErrorCode
from tunesmith_server.api import large_bodies
from tunesmith_server.api.audited import READS, entry_of
from tunesmith_server.api.bounds import BoundedRequest
from tunesmith_server.api.deps import State, state_of
from tunesmith_server.core.errors import Forbidden, MethodNotAllowed
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.models import changes, scope
from tunesmith_server.services import audit, keys, sessions
from tunesmith_server.services.sessions import SignedIn

from . import cookies, failures, refusals, security
from .visit import Page, Refused, Visit

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]  # Any: a coroutine's own


class _PageRoute(Route):
    """Route of a page. A request with a method that the page does not accept gets an error page."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in (self.methods or ()):
            await super().handle(scope, receive, send)
        else:
            response = await self._refuse(Request(scope, receive, send))
            await response(scope, receive, send)

    async def _refuse(self, request: Request) -> Response:
        routes = [route for route in request.app.routes if isinstance(route, _PageRoute)]
        methods = {
            name for route in routes if route.path == self.path for name in route.methods or ()
        }
        try:
            await _recognise(request, Plane.USERS)  # for the navigation of the error page
            raise MethodNotAllowed(
                ErrorCode.METHOD_NOT_ALLOWED,
                f"the page {request.url.path} does not accept a {request.method} request",
                hint="open the page and repeat the action there",
                headers={"allow": ", ".join(sorted(methods))},
            )
        except Exception as error:
            return await failures.respond(request, error)


def route_of(page: Page) -> Route:
    return _PageRoute(page.path, _endpoint(page), methods=[page.method])


def _endpoint(page: Page) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            return await _answer(page, request)
        except Refused as refused:
            return refused.response
        except ClientDisconnect:
            raise  # nobody waits for an answer
        except Exception as error:  # shown as a page; the API's handlers choose status and text
            return await failures.respond(request, error)

    return answer


async def _answer(page: Page, request: Request) -> Response:
    state, changing = state_of(request), page.method != "GET"
    if page.per_minute:
        address = request.client.host if request.client else None
        state.rate_limits.check_address(security.network_of(address), page.per_minute)
    signed_in = await visitor(request)
    if not page.is_public:
        if signed_in is None:
            return _to_sign_in(request)
        state.rate_limits.check(signed_in.principal)
        require(signed_in, page.needs, changing=changing)
    plane = Plane.BULK if page.is_bulk else Plane.USERS
    form = await _form(page, request)
    try:
        return await run_in(plane, partial(_show, page, request, state, signed_in, form))
    finally:
        await form.close()


async def visitor(request: Request, plane: Plane = Plane.USERS) -> SignedIn | None:
    """Return the caller of the request; None without a session. Raises Forbidden if a page of
    another site sends a request that changes data."""
    if request.method not in ("GET", "HEAD") and security.is_cross_site(request):
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            "a page of another site sent this request, so it was refused",
            hint="open the portal and repeat the action there",
        )
    return await _recognise(request, plane)


async def _recognise(request: Request, plane: Plane) -> SignedIn | None:
    signed_in = await run_in(plane, partial(_signed_in, state_of(request), request))
    request.state.signed_in = signed_in
    return signed_in


def require(signed_in: SignedIn, routes: Sequence[str], *, changing: bool) -> None:
    """Raise Forbidden if the caller may not use all of the given API routes."""
    if changing and signed_in.kind == "display":
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            "this browser is signed in for display and may only read",
            hint="sign out, and sign in with an API key",
        )
    for route in routes:
        refusals.require(signed_in.principal, route)


async def _form(page: Page, request: Request) -> FormData:
    """Return the form of a request that changes data. An uploaded file is spooled to disk."""
    if page.method == "GET":
        return FormData()
    if not page.takes_file:
        return await request.form(max_files=0, max_fields=1000)
    bounded = BoundedRequest(request.scope, request.receive)
    async with large_bodies.admitted(bounded, is_form=True):
        form: FormData = await bounded.form()
    return form


def _signed_in(state: State, request: Request) -> SignedIn | None:
    secret = cookies.secret_in(request)
    if not secret:
        return None
    with state.database.read() as session:
        return sessions.authenticate(session, secret)


def _to_sign_in(request: Request) -> Response:
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method != "GET":
        address = security.HOME
    path = f"/portal/sign-in?{urlencode({'to': address})}"
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={**security.HEADERS, "hx-redirect": path})
    return RedirectResponse(path, 303, security.HEADERS)


def _show(
    page: Page, request: Request, state: State, signed_in: SignedIn | None, form: FormData
) -> Response:
    """Call the page's function in one transaction.

    The audit log gets an entry for each change and for each download of a file's content. The
    transaction of the page also adds the audit entry. If a bulk page (`Page.is_bulk`) only reads,
    another transaction adds the audit entry afterwards.
    """
    only_reads = page.method == "GET"
    if only_reads and (page.is_bulk or not READS.intersection(page.needs[:1])):
        with _limited(state.database.read(), signed_in) as session:
            visit = _visit(request, state, signed_in, session, form)
            response = page.show(visit)
        for read in _entries(page, visit):
            with state.database.write.begin() as session:
                audit.append(session, read)
        return response
    with _limited(state.database.write(), signed_in) as session, session.begin():
        watched = changes.watch(session)
        response = page.show(_visit(request, state, signed_in, session, form))
        if entry := _entry(page, request, signed_in):
            audit.append(session, entry, watched)
        if page.takes_file and signed_in:
            keys.check_open(session, signed_in.principal.use)  # the body may have taken long
        return response


def _entry(page: Page, request: Request, signed_in: SignedIn | None) -> audit.Entry | None:
    if not page.needs or signed_in is None:
        return None
    method, _, path = page.needs[0].partition(" ")
    return entry_of(request, signed_in.principal, path, method)


def _entries(page: Page, visit: Visit) -> list[audit.Entry]:
    """Return the audit entries of a page that changes nothing: one entry for the page, and one for
    each further read that the page has listed in `visit.reads`."""
    if visit.signed_in is None:
        return []
    own = _entry(page, visit.request, visit.signed_in)
    principal = visit.signed_in.principal
    others = [
        replace(entry, target=target)
        for route, target in visit.reads
        if (entry := entry_of(visit.request, principal, *reversed(route.split(" ", 1))))
    ]
    return [own, *others] if own else others


def _limited(session: Session, signed_in: SignedIn | None) -> Session:
    if signed_in is None:
        return session
    return scope.limit(session, signed_in.principal.project)


def _visit(
    request: Request,
    state: State,
    signed_in: SignedIn | None,
    session: Session,
    form: FormData,
) -> Visit:
    return Visit(request=request, state=state, signed_in=signed_in, session=session, form=form)

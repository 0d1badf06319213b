"""Routes of pages: sign-in, rights, transaction, audit log and error pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from tunesmith_schema import ErrorCode
from tunesmith_server.api.audited import READS, entry_of
from tunesmith_server.api.deps import State, state_of
from tunesmith_server.core.errors import Forbidden
from tunesmith_server.core.planes import Plane, run_in
from tunesmith_server.identity import policy
from tunesmith_server.models import changes, scope
from tunesmith_server.services import audit, sessions
from tunesmith_server.services.sessions import SignedIn

from . import cookies, failures, security
from .visit import Page, Refused, Visit

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]  # Any: a coroutine's own


def route_of(page: Page) -> Route:
    return Route(page.path, _endpoint(page), methods=[page.method])


def _endpoint(page: Page) -> Endpoint:
    async def answer(request: Request) -> Response:
        try:
            return await _answer(page, request)
        except Refused as refused:
            return refused.response
        except Exception as error:  # shown as a page; the API's handlers choose status and text
            return await failures.respond(request, error)

    return answer


async def _answer(page: Page, request: Request) -> Response:
    state = state_of(request)
    changing = page.method != "GET"
    if changing and security.is_cross_site(request):
        raise Forbidden(
            ErrorCode.PERMISSION_DENIED,
            "a page of another site sent this request, so it was refused",
            hint="open the portal and repeat the action there",
        )
    signed_in = await run_in(Plane.USERS, partial(_signed_in, state, request))
    request.state.signed_in = signed_in
    if not page.is_public:
        if signed_in is None:
            return _to_sign_in(request)
        if changing and signed_in.kind == "display":
            raise Forbidden(
                ErrorCode.PERMISSION_DENIED,
                "this browser is signed in for display and may only read",
                hint="sign out, and sign in with an API key",
            )
        state.rate_limits.check(signed_in.principal)
        for route in page.needs:
            policy.require(signed_in.principal, policy.RULES[route], route)
    form = await request.form(max_files=0, max_fields=1000) if changing else FormData()
    return await run_in(Plane.USERS, partial(_show, page, request, state, signed_in, form))


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
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={**security.HEADERS, "hx-redirect": path})
    return RedirectResponse(path, 303, security.HEADERS)


def _show(
    page: Page, request: Request, state: State, signed_in: SignedIn | None, form: FormData
) -> Response:
    """Run the page in one transaction, and append a change, or the read of a file's content, to the
    audit log in it."""
    if page.method == "GET" and not READS.intersection(page.needs[:1]):
        with _limited(state.database.read(), signed_in) as session:
            return page.show(_visit(request, state, signed_in, session, form))
    with _limited(state.database.write(), signed_in) as session, session.begin():
        watched = changes.watch(session)
        response = page.show(_visit(request, state, signed_in, session, form))
        if page.needs and signed_in:
            path = page.needs[0].partition(" ")[2]
            if entry := entry_of(request, signed_in.principal, path):
                audit.append(session, entry, watched)
        return response


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

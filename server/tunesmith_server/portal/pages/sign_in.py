"""Sign-in with an API key or with a link, and sign-out."""

from __future__ import annotations

from starlette.responses import Response

from tunesmith_schema import ErrorCode
from tunesmith_server.core.errors import TooManyRequests, Unauthorized
from tunesmith_server.portal import cookies, security
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services import keys, sessions

_SCREEN = "/portal/screen"
"""Address of the first page of a display session."""


def form(visit: Visit) -> Response:
    """Show the form; with `?link=`, show a button that uses the link."""
    to = security.own_path(visit.query("to") or security.HOME)
    if visit.signed_in is not None and not visit.query("link"):
        return visit.go(to)
    return _form(visit, to=to, link=visit.query("link"))


def _form(
    visit: Visit, *, to: str, link: str = "", problem: str = "", status: int = 200
) -> Response:
    return visit.show("sign_in.html", status=status, to=to, link=link, problem=problem)


def sign_in(visit: Visit) -> Response:
    """Exchange a key or a link for a session."""
    _check_limit(visit)
    to = security.own_path(visit.field("to") or security.HOME)
    link = visit.field("link")
    opened = _by_link(visit, link) if link else _by_key(visit, visit.field("key"))
    if opened is None:
        _failures(visit).add(_address(visit))
        problem = "This key is not valid, or it was revoked or has expired."
        if link:
            problem = "This link was used already or has expired. Sign in with an API key."
        return _form(visit, to=to, problem=problem, status=401)
    secret, days = opened
    response = visit.go(_SCREEN if days == cookies.DISPLAY_DAYS else to)
    cookies.set_session(visit.request, response, secret, days=days)
    return response


def _by_key(visit: Visit, key: str) -> tuple[str, float] | None:
    try:
        principal = keys.authenticate(visit.session, f"Bearer {key.strip()}")
    except Unauthorized:
        return None
    _, secret = sessions.create(
        visit.session, principal.key_id, user_agent=visit.request.headers.get("user-agent")
    )
    _end_former(visit)
    return secret, cookies.BROWSER_DAYS


def _by_link(visit: Visit, link: str) -> tuple[str, float] | None:
    if sessions.authenticate(visit.session, link) is not None:
        display = sessions.find(visit.session, link, "display")
        return (link, cookies.DISPLAY_DAYS) if display else None
    secret = sessions.redeem_link(visit.session, link, visit.request.headers.get("user-agent"))
    if secret is None:
        return None
    _end_former(visit)
    return secret, cookies.BROWSER_DAYS


def _end_former(visit: Visit) -> None:
    if visit.signed_in is not None and visit.signed_in.kind == "browser":
        sessions.end(visit.session, visit.signed_in.id)


def _check_limit(visit: Visit) -> None:
    wait = _failures(visit).seconds_to_wait(_address(visit))
    if wait:
        raise TooManyRequests(
            ErrorCode.RATE_LIMIT_EXCEEDED,
            f"{security.MOST_FAILURES} sign-ins from your address failed within a minute",
            hint=f"try again in {wait} s",
            headers={"retry-after": str(wait)},
        )


def _failures(visit: Visit) -> security.FailedSignIns:
    failures: security.FailedSignIns = visit.request.app.state.portal_failed_sign_ins
    return failures


def _address(visit: Visit) -> str | None:
    return visit.request.client.host if visit.request.client else None


def sign_out(visit: Visit) -> Response:
    """End the session and delete its cookie. A display session does not end: only the cookie is
    deleted."""
    _end_former(visit)
    response = visit.go("/portal/sign-in")
    cookies.clear_session(visit.request, response)
    return response


PAGES = [
    Page(path="/portal/sign-in", show=form, is_public=True),
    Page(path="/portal/sign-in", method="POST", show=sign_in, is_public=True),
    Page(path="/portal/sign-out", method="POST", show=sign_out, is_public=True),
]

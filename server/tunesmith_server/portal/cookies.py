"""Cookies of the portal: the session's secret, the theme, hidden columns, and the last visit of the
home page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast, get_args

from starlette.requests import Request
from starlette.responses import Response

from tunesmith_server.services import sessions

Theme = Literal["light", "dark", "auto"]
_NAME = "tunesmith_session"
_THEME = "tunesmith_theme"
_COLUMNS = "tunesmith_hidden"
_VISIT = "tunesmith_visit"
_VISIT_SECONDS = 30 * 86_400
_THEME_SECONDS = 400 * 86_400
"""Lifetime of the theme's cookie in seconds, the longest that browsers allow."""


def _is_https(request: Request) -> bool:
    return request.url.scheme == "https"


def _name(request: Request) -> str:
    """Return the name of the session's cookie. Over https, the name has the prefix `__Host-`. Other
    hosts and http pages cannot set a cookie with this prefix."""
    return f"__Host-{_NAME}" if _is_https(request) else _NAME


def secret_in(request: Request) -> str | None:
    return request.cookies.get(_name(request))


def set_session(request: Request, response: Response, secret: str, *, days: float) -> None:
    https = _is_https(request)
    response.set_cookie(
        _name(request), secret, max_age=int(days * 86_400), httponly=True, samesite="lax",
        secure=https, path="/" if https else "/portal",
    )  # fmt: skip


def clear_session(request: Request, response: Response) -> None:
    https = _is_https(request)
    response.delete_cookie(
        _name(request), httponly=True, samesite="lax", secure=https,
        path="/" if https else "/portal",
    )  # fmt: skip


def theme_of(request: Request) -> Theme:
    theme = request.cookies.get(_THEME)
    return cast(Theme, theme) if theme in get_args(Theme) else "auto"


def set_theme(request: Request, response: Response, theme: str) -> None:
    chosen = theme if theme in get_args(Theme) else "auto"
    response.set_cookie(
        _THEME, chosen, max_age=_THEME_SECONDS, httponly=True, samesite="lax",
        secure=_is_https(request), path="/portal",
    )  # fmt: skip


def hidden_columns(request: Request) -> list[str]:
    """Return the columns of the list of jobs that the visitor has hidden."""
    names = request.cookies.get(_COLUMNS, "").split(".")
    return [name for name in names if name.isalpha()][:20]


def set_hidden_columns(request: Request, response: Response, names: Sequence[str]) -> None:
    response.set_cookie(
        _COLUMNS, ".".join(names), max_age=_THEME_SECONDS, httponly=True, samesite="lax",
        secure=_is_https(request), path="/portal",
    )  # fmt: skip


def home_visit(request: Request) -> tuple[int, int]:
    """Return two Unix times: the last visit of the home page, and the start of the absence that the
    page reports on (pages/away.py). An unknown time is 0."""
    seen, _, away = request.cookies.get(_VISIT, "").partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 12 for part in (seen, away)):
        return 0, 0
    return int(seen), int(away)


def set_home_visit(request: Request, response: Response, seen: float, away: float) -> None:
    response.set_cookie(
        _VISIT, f"{int(seen)}.{int(away)}", max_age=_VISIT_SECONDS, httponly=True, samesite="lax",
        secure=_is_https(request), path="/portal",
    )  # fmt: skip


BROWSER_DAYS = sessions.LONGEST_SECONDS / 86_400
DISPLAY_DAYS = sessions.DISPLAY_SECONDS / 86_400

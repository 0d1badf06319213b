"""Sign-ins to the portal."""

from __future__ import annotations

from typing import Literal

from .base import Request, Response
from .organization import Name

SessionKind = Literal["browser", "display"]
"""Kind of session. `browser`: session of a user who signed in; `display`: read-only session for an
office screen."""


class PortalSession(Response):
    """A sign-in to the portal. A session has the rights of its API key, and ends when the key
    expires or is revoked."""

    id: str
    object: Literal["portal.session"] = "portal.session"
    kind: SessionKind
    """Kind of session: `browser` or `display`."""
    name: str | None = None
    """Name of a display session."""
    key_id: str
    """API key whose rights the session has."""
    created_at: int
    last_seen_at: int
    """Time of the last request; the value may be a minute old."""
    expires_at: int
    """Time when the session ends if no further request is made."""
    user_agent: str | None = None
    """Name of the browser in its `User-Agent` header."""


class DisplaySessionCreate(Request):
    """Request to create a display session: a read-only session of 90 days for an office screen."""

    name: Name
    """Name of the session, for example the name of the screen."""


class DisplaySessionCreated(PortalSession):
    """A new display session with its link, which is shown only once."""

    path: str
    """Path of the link, below the server's address. Everyone who opens the link may read until the
    session ends."""


class PortalSessionDeleted(Response):
    """Confirmation that a session was ended."""

    id: str
    object: Literal["portal.session.deleted"] = "portal.session.deleted"
    deleted: bool = True
    """Always true."""

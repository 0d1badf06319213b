"""Callers that open pages, each with a session of its own: besides the user `ann` a viewer, an
office screen, a member of a project without anything, and a key that has used up its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from tunesmith_schema import ProjectCreate
from tunesmith_server.identity import projects
from tunesmith_server.services import keys, sessions

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from tunesmith_server.core.settings import Settings

Caller = Literal["nobody", "ann", "viewer", "display", "newcomer", "limited"]
Secrets = dict[Caller, str]
"""Secret of each caller's session. `ann` is missing: she signs in as a user does."""


def create(session: Session, settings: Settings, owner: str) -> Secrets:
    """Create the callers. `owner` is the id of ann's key, whose display session is the screen."""
    empty = projects.create(session, settings, ProjectCreate(name="Empty")).id
    made: dict[Caller, str] = {
        "viewer": keys.create(session, "vera", role="viewer")[0].id,
        "newcomer": keys.create(session, "nina", role="member", project_id=empty)[0].id,
        "limited": keys.create(session, "lim", role="viewer", requests_per_minute=1)[0].id,
    }
    secrets: Secrets = {"display": sessions.create(session, owner, "display", name="wall")[1]}
    for caller, key_id in made.items():
        secrets[caller] = sessions.create(session, key_id)[1]
    return secrets


def cookies(secrets: Secrets, caller: Caller, url: str) -> dict[str, Any]:  # Any: JSON
    """Return the profile of a caller, as Playwright's storage state."""
    host = url.partition("://")[2].partition(":")[0]
    cookie = {
        "name": "tunesmith_session", "value": secrets[caller], "domain": host, "path": "/portal",
        "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax",
    }  # fmt: skip
    return {"cookies": [cookie], "origins": []}

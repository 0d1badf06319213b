"""Routes under /v1/sessions: the caller's sign-ins to the portal."""

from __future__ import annotations

from fastapi import APIRouter

from tunesmith_schema import (
    DisplaySessionCreate,
    DisplaySessionCreated,
    Page,
    PortalSession,
    PortalSessionDeleted,
)
from tunesmith_server.identity import portal_sessions

from .bounds import IdPath
from .deps import KeyRoute, PrincipalDep, ReaderDep, SessionDep

router = APIRouter(prefix="/sessions", tags=["portal"], route_class=KeyRoute)


@router.get("")
def list_sessions(principal: PrincipalDep, session: ReaderDep) -> Page[PortalSession]:
    """List the portal sessions of the caller's keys, newest first."""
    return portal_sessions.list_own(session, principal)


@router.post("")
def create(
    principal: PrincipalDep, session: SessionDep, body: DisplaySessionCreate
) -> DisplaySessionCreated:
    """Create a display session, for an office screen. The session can only read, and lasts 90 days.
    Only this response has `path`, the link that the screen must open to sign in."""
    return portal_sessions.create_display(session, principal, body)


@router.delete("/{session_id}")
def delete(
    principal: PrincipalDep, session: SessionDep, session_id: IdPath
) -> PortalSessionDeleted:
    """End a sign-in immediately."""
    return portal_sessions.delete(session, principal, session_id)

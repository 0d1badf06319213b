"""Route /v1/me: the caller of the request."""

from __future__ import annotations

from fastapi import APIRouter

from tunesmith_schema import Me
from tunesmith_server.identity import me

from .deps import KeyRoute, PrincipalDep, ReaderDep

router = APIRouter(tags=["organization"], route_class=KeyRoute)


@router.get("/me")
def retrieve(principal: PrincipalDep, session: ReaderDep) -> Me:
    """Return the owner, the project and the rights of the caller's key."""
    return me.describe(session, principal)

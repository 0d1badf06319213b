"""`client.sessions`: sign-ins to the portal with your keys."""

from __future__ import annotations

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import DisplaySessionCreated, PortalSession, PortalSessionDeleted


class Sessions:
    """Sign-ins to the portal."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self) -> Page[PortalSession]:
        """List the sign-ins with your keys, newest first."""
        return first_page(
            lambda _: self._http.get(wire.Page[PortalSession], path_of("sessions")), None
        )

    def create(self, *, name: str) -> DisplaySessionCreated:
        """Create a read-only session for a screen that shows the portal, for example in an office.
        Only this method returns the `path` of the session's link."""
        return self._http.post(DisplaySessionCreated, path_of("sessions"), json={"name": name})

    def delete(self, session_id: str) -> PortalSessionDeleted:
        """End a sign-in immediately."""
        return self._http.delete(PortalSessionDeleted, path_of("sessions", session_id))

"""Page of settings: the caller, the caller's sign-ins, the keys of the project, and storage."""

from __future__ import annotations

from collections import Counter

from pydantic import ValidationError
from starlette.responses import Response

from tunesmith_schema import DisplaySessionCreate
from tunesmith_schema.versions import installed_version
from tunesmith_server.identity import me, portal_sessions, project_keys
from tunesmith_server.portal import devices
from tunesmith_server.portal.calls import Call
from tunesmith_server.portal.visit import Page, Visit
from tunesmith_server.services import stored

_MOST_KEYS = 100
_HERE = "/portal/settings"


def show(visit: Visit) -> Response:
    return _page(visit)


def _page(visit: Visit, *, link: str = "", problem: str = "", status: int = 200) -> Response:
    principal, session = visit.principal, visit.session
    may_manage = "manage" in principal.verbs
    keys = []
    if may_manage:
        page = project_keys.list_keys(session, principal.project_id, after=None, limit=_MOST_KEYS)
        keys = page.data
    is_display = visit.signed_in is not None and visit.signed_in.kind == "display"
    administers = "administer" in principal.verbs
    return visit.show(
        "settings.html",
        status=status,
        me=me.describe(session, principal),
        keys=keys,
        may_manage=may_manage and not is_display,
        may_write="write" in principal.verbs,
        sessions=[] if is_display else portal_sessions.list_own(session, principal).data,
        this_session=visit.signed_in.id if visit.signed_in else "",
        link=link,
        problem=problem,
        storage=stored.report(session, visit.state.storage, visit.state.settings)
        if administers
        else None,
        version=installed_version("tunesmith"),
        versions=_versions(visit),
        calls=_calls(principal.project_id, may_manage, administers),
    )


def _versions(visit: Visit) -> list[tuple[int, str]]:
    """Return the versions of the workers, each with the number of workers that have it."""
    lanes = devices.read(visit, waiting=0).lanes
    found = Counter(lane.worker.version or "unknown" for lane in lanes)
    return [(number, name) for name, number in found.most_common()]


def _calls(project_id: str, may_manage: bool, administers: bool) -> list[Call]:
    calls = [
        Call(path="/v1/me", sdk="client.me()", cli="tunesmith whoami"),
        Call(path="/v1/sessions", sdk="client.sessions.list()", cli="tunesmith sessions list"),
        Call(path="/v1/workers", sdk="client.workers.list()", cli="tunesmith worker list"),
    ]
    if may_manage:
        keys = Call(
            path=f"/v1/organization/projects/{project_id}/api_keys",
            sdk=f"client.admin.organization.projects.api_keys.list({project_id!r})",
            cli="",
        )
        calls.append(keys)
    if administers:
        storage = Call(
            path="/v1/organization/storage",
            sdk="client.admin.organization.storage.retrieve()",
            cli="tunesmith storage",
        )
        calls.append(storage)
    return calls


def create_display(visit: Visit) -> Response:
    """Create a display session and show its link. The link is shown only once."""
    try:
        body = DisplaySessionCreate(name=visit.field("name").strip())
    except ValidationError:
        return _page(visit, problem="Give the screen a name of 1 to 120 characters.", status=400)
    made = portal_sessions.create_display(visit.session, visit.principal, body)
    return _page(visit, link=str(visit.request.base_url).rstrip("/") + made.path)


def end_session(visit: Visit) -> Response:
    portal_sessions.delete(visit.session, visit.principal, visit.param("session_id"))
    return visit.go(_HERE)


def revoke_key(visit: Visit) -> Response:
    project_keys.delete(visit.session, visit.principal.project_id, visit.param("key_id"))
    return visit.go(_HERE)


PAGES = [
    Page(path=_HERE, show=show, needs=("GET /me", "GET /sessions", *devices.NEEDS)),
    Page(path=f"{_HERE}/displays", method="POST", show=create_display, needs=("POST /sessions",)),
    Page(
        path=f"{_HERE}/sessions/{{session_id}}/end",
        method="POST",
        show=end_session,
        needs=("DELETE /sessions/{session_id}",),
    ),
    Page(
        path=f"{_HERE}/keys/{{key_id}}/revoke",
        method="POST",
        show=revoke_key,
        needs=("DELETE /organization/projects/{project_id}/api_keys/{key_id}",),
    ),
]

"""Routes under /v1/organization: OpenAI's administration of projects, users and API keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from tunesmith_schema import (
    AdminApiKey,
    AdminApiKeyCreate,
    AdminApiKeyCreated,
    AuditLogEntry,
    Deleted,
    OrganizationStorage,
    OrganizationUser,
    Page,
    Project,
    ProjectApiKey,
    ProjectApiKeyCreate,
    ProjectApiKeyCreated,
    ProjectCreate,
    ProjectUpdate,
    ProjectUser,
    ProjectUserCreate,
    ProjectUserUpdate,
    UserCreate,
    UserUpdate,
)
from tunesmith_schema.bounds import MAX_SECONDS
from tunesmith_server.identity import audit_log, members, project_keys, projects, users
from tunesmith_server.identity.audit_log import AuditFilters
from tunesmith_server.services import stored

from .bounds import AfterQuery, IdPath
from .deps import (
    CursorDep,
    KeyRoute,
    PrincipalDep,
    ReaderDep,
    SessionDep,
    StateDep,
    send_page,
)

router = APIRouter(prefix="/organization", tags=["organization"], route_class=KeyRoute)

LimitQuery = Annotated[int, Query(ge=1, le=100)]
IdQuery = Annotated[str | None, Query(max_length=64)]
SecondsQuery = Annotated[int | None, Query(ge=0, le=MAX_SECONDS)]
EmailsQuery = Annotated[
    list[Annotated[str, Query(max_length=254)]] | None, Query(max_length=100, alias="emails")
]


@router.get("/projects")
def list_projects(
    principal: PrincipalDep,
    state: StateDep,
    session: ReaderDep,
    after: AfterQuery = None,
    limit: LimitQuery = 20,
    include_archived: bool = False,
) -> Page[Project]:
    """List projects, oldest first. A caller with the role `lead` gets only its own project."""
    return projects.list_projects(
        session,
        state.settings,
        principal,
        after=after,
        limit=limit,
        include_archived=include_archived,
    )


@router.post("/projects")
def create_project(state: StateDep, session: SessionDep, body: ProjectCreate) -> Project:
    return projects.create(session, state.settings, body)


@router.get("/projects/{project_id}")
def retrieve_project(state: StateDep, session: ReaderDep, project_id: IdPath) -> Project:
    return projects.to_wire(state.settings, projects.retrieve(session, project_id))


@router.post("/projects/{project_id}")
def update_project(
    state: StateDep, session: SessionDep, project_id: IdPath, body: ProjectUpdate
) -> Project:
    return projects.update(session, state.settings, project_id, body)


@router.post("/projects/{project_id}/archive")
def archive_project(state: StateDep, session: SessionDep, project_id: IdPath) -> Project:
    """Archive a project. The project's keys stop working; its running jobs end as usual."""
    return projects.archive(session, state.settings, project_id)


@router.get("/projects/{project_id}/users")
def list_members(
    session: ReaderDep, project_id: IdPath, after: AfterQuery = None, limit: LimitQuery = 20
) -> Page[ProjectUser]:
    """List the members of a project."""
    return members.list_members(session, project_id, after=after, limit=limit)


@router.post("/projects/{project_id}/users")
def add_member(
    principal: PrincipalDep, session: SessionDep, project_id: IdPath, body: ProjectUserCreate
) -> ProjectUser:
    """Add a user to a project."""
    return members.add(session, principal, project_id, body)


@router.get("/projects/{project_id}/users/{user_id}")
def retrieve_member(session: ReaderDep, project_id: IdPath, user_id: IdPath) -> ProjectUser:
    return members.retrieve(session, project_id, user_id)


@router.post("/projects/{project_id}/users/{user_id}")
def change_member(
    principal: PrincipalDep,
    session: SessionDep,
    project_id: IdPath,
    user_id: IdPath,
    body: ProjectUserUpdate,
) -> ProjectUser:
    """Change a member's role."""
    return members.change(session, principal, project_id, user_id, body)


@router.delete("/projects/{project_id}/users/{user_id}")
def remove_member(session: SessionDep, project_id: IdPath, user_id: IdPath) -> Deleted:
    """Remove a member, and revoke the member's keys of this project."""
    return members.remove(session, project_id, user_id)


@router.get("/projects/{project_id}/api_keys")
def list_keys(
    session: ReaderDep, project_id: IdPath, after: AfterQuery = None, limit: LimitQuery = 20
) -> Page[ProjectApiKey]:
    """List a project's keys, without their secrets."""
    return project_keys.list_keys(session, project_id, after=after, limit=limit)


@router.post("/projects/{project_id}/api_keys")
def create_key(
    principal: PrincipalDep,
    state: StateDep,
    session: SessionDep,
    project_id: IdPath,
    body: ProjectApiKeyCreate,
) -> ProjectApiKeyCreated:
    """Create a key. The new key cannot have more rights than your key. Only this response contains
    the key's `value`."""
    return project_keys.create(session, state.settings, principal, project_id, body)


@router.get("/projects/{project_id}/api_keys/{key_id}")
def retrieve_key(session: ReaderDep, project_id: IdPath, key_id: IdPath) -> ProjectApiKey:
    return project_keys.retrieve(session, project_id, key_id)


@router.delete("/projects/{project_id}/api_keys/{key_id}")
def delete_key(session: SessionDep, project_id: IdPath, key_id: IdPath) -> Deleted:
    """Revoke a key immediately."""
    return project_keys.delete(session, project_id, key_id)


@router.get("/users")
def list_users(
    session: ReaderDep,
    after: AfterQuery = None,
    limit: LimitQuery = 20,
    emails: EmailsQuery = None,
) -> Page[OrganizationUser]:
    """List all users, or only those with the given e-mail addresses."""
    return users.list_users(session, after=after, limit=limit, emails=emails or [])


@router.post("/users")
def create_user(session: SessionDep, body: UserCreate) -> OrganizationUser:
    """Add a user. OpenAI's API has invitations instead of this route."""
    return users.create(session, body)


@router.get("/users/{user_id}")
def retrieve_user(session: ReaderDep, user_id: IdPath) -> OrganizationUser:
    return users.to_wire(users.retrieve(session, user_id))


@router.post("/users/{user_id}")
def update_user(session: SessionDep, user_id: IdPath, body: UserUpdate) -> OrganizationUser:
    return users.update_user(session, user_id, body)


@router.delete("/users/{user_id}")
def delete_user(session: SessionDep, user_id: IdPath) -> Deleted:
    """Delete a user and revoke the user's keys."""
    return users.delete_user(session, user_id)


async def get_audit_filters(
    project_id: IdQuery = None,
    actor_id: IdQuery = None,
    action: Annotated[str | None, Query(max_length=120)] = None,
    object_id: IdQuery = None,
    created_after: SecondsQuery = None,
    created_before: SecondsQuery = None,
) -> AuditFilters:
    """Return the filters in the query parameters of the audit log."""
    return AuditFilters(
        project_id=project_id,
        actor_id=actor_id,
        action=action,
        object_id=object_id,
        created_after=created_after,
        created_before=created_before,
    )


@router.get("/audit_logs", response_model=None, responses={200: {"model": Page[AuditLogEntry]}})
def list_audit_logs(
    session: ReaderDep,
    cursor: CursorDep,
    filters: Annotated[AuditFilters, Depends(get_audit_filters)],
) -> Response:
    """List the entries of the audit log, newest first. `actor_id` selects the entries of a key or a
    user. `action` selects the entries whose action starts with this text. `object_id` selects the
    entries about the object with this id."""
    page = audit_log.list_entries(
        session, filters, after=cursor.after, limit=cursor.limit, order=cursor.order
    )
    return send_page(page)


@router.get("/storage")
def retrieve_storage(state: StateDep, session: ReaderDep) -> OrganizationStorage:
    """Show the stored bytes by kind and project, the free disk and the janitor's last runs."""
    return stored.report(session, state.storage, state.settings)


@router.get("/admin_api_keys")
def list_admin_keys(
    session: ReaderDep, after: AfterQuery = None, limit: LimitQuery = 20
) -> Page[AdminApiKey]:
    """List admin keys, without their secrets."""
    return project_keys.list_admin(session, after=after, limit=limit)


@router.post("/admin_api_keys")
def create_admin_key(
    principal: PrincipalDep, session: SessionDep, body: AdminApiKeyCreate
) -> AdminApiKeyCreated:
    """Create an admin key. Only this response contains the key's `value`."""
    return project_keys.create_admin(session, principal, body)


@router.get("/admin_api_keys/{key_id}")
def retrieve_admin_key(session: ReaderDep, key_id: IdPath) -> AdminApiKey:
    return project_keys.retrieve_admin(session, key_id)


@router.delete("/admin_api_keys/{key_id}")
def delete_admin_key(principal: PrincipalDep, session: SessionDep, key_id: IdPath) -> Deleted:
    """Revoke an admin key immediately."""
    return project_keys.delete_admin(session, principal, key_id)

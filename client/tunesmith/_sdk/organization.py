"""`client.admin.organization`: projects, their members and keys, users, and admin keys, with the
same methods as the `openai` client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tunesmith_schema as wire
from tunesmith._http.connection import Http, Params, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import (
    AdminApiKey,
    AdminApiKeyCreated,
    AuditLogEntry,
    Deleted,
    OrganizationStorage,
    OrganizationUser,
    Project,
    ProjectApiKey,
    ProjectApiKeyCreated,
    ProjectRole,
    ProjectUser,
    UserRole,
    Verb,
)

_ROOT = "organization"


class _Unset:
    """Type of `UNSET`. None cannot stand for a missing argument, because None removes a value."""


UNSET = _Unset()
"""Default value of an argument; it leaves the field unchanged."""


def _sent(**fields: Any) -> dict[str, Any]:  # Any: JSON
    return {name: value for name, value in fields.items() if value is not None}


class ProjectUsers:
    """Members of a project."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self, project_id: str, *, limit: int | None = None) -> Page[ProjectUser]:
        def fetch(after: str | None) -> wire.Page[ProjectUser]:
            params: Params = {"limit": limit, "after": after}
            path = path_of(_ROOT, "projects", project_id, "users")
            return self._http.get(wire.Page[ProjectUser], path, params)

        return first_page(fetch, None)

    def create(
        self,
        project_id: str,
        *,
        user_id: str | None = None,
        email: str | None = None,
        role: ProjectRole = "member",
    ) -> ProjectUser:
        """Add a user, named by id or e-mail address, to a project."""
        body = _sent(user_id=user_id, email=email, role=role)
        path = path_of(_ROOT, "projects", project_id, "users")
        return self._http.post(ProjectUser, path, json=body)

    def update(self, user_id: str, *, project_id: str, role: ProjectRole) -> ProjectUser:
        """Change a member's role."""
        path = path_of(_ROOT, "projects", project_id, "users", user_id)
        return self._http.post(ProjectUser, path, json={"role": role})

    def delete(self, user_id: str, *, project_id: str) -> Deleted:
        """Remove a member; the member's keys of the project are revoked."""
        path = path_of(_ROOT, "projects", project_id, "users", user_id)
        return self._http.delete(Deleted, path)


class ProjectApiKeys:
    """API keys of a project."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self, project_id: str, *, limit: int | None = None) -> Page[ProjectApiKey]:
        def fetch(after: str | None) -> wire.Page[ProjectApiKey]:
            params: Params = {"limit": limit, "after": after}
            path = path_of(_ROOT, "projects", project_id, "api_keys")
            return self._http.get(wire.Page[ProjectApiKey], path, params)

        return first_page(fetch, None)

    def create(
        self,
        project_id: str,
        *,
        name: str,
        role: ProjectRole = "member",
        verbs: Sequence[Verb] | None = None,
        expires_in_seconds: int | None = None,
        user_id: str | None = None,
        requests_per_minute: int | None = None,
    ) -> ProjectApiKeyCreated:
        """Create a key. Only the returned object has the key itself, in `value`."""
        body = _sent(
            name=name,
            role=role,
            verbs=None if verbs is None else [*verbs],
            expires_in_seconds=expires_in_seconds,
            user_id=user_id,
            requests_per_minute=requests_per_minute,
        )
        path = path_of(_ROOT, "projects", project_id, "api_keys")
        return self._http.post(ProjectApiKeyCreated, path, json=body)

    def retrieve(self, key_id: str, *, project_id: str) -> ProjectApiKey:
        path = path_of(_ROOT, "projects", project_id, "api_keys", key_id)
        return self._http.get(ProjectApiKey, path)

    def delete(self, key_id: str, *, project_id: str) -> Deleted:
        """Revoke a key immediately."""
        path = path_of(_ROOT, "projects", project_id, "api_keys", key_id)
        return self._http.delete(Deleted, path)


class Projects:
    """Projects of the organization."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self.users = ProjectUsers(http)
        self.api_keys = ProjectApiKeys(http)

    def list(self, *, limit: int | None = None, include_archived: bool = False) -> Page[Project]:
        archived = {"include_archived": "true"} if include_archived else {}

        def fetch(after: str | None) -> wire.Page[Project]:
            params: Params = {"limit": limit, "after": after, **archived}
            return self._http.get(wire.Page[Project], path_of(_ROOT, "projects"), params)

        return first_page(fetch, None)

    def create(
        self,
        *,
        name: str,
        max_bytes: int | None = None,
        base_models: Sequence[str] | None = None,
    ) -> Project:
        """Create a project, optionally with a quota of stored bytes and a list of the base models
        that it may use."""
        models = None if base_models is None else [*base_models]
        body = _sent(name=name, max_bytes=max_bytes, base_models=models)
        return self._http.post(Project, path_of(_ROOT, "projects"), json=body)

    def retrieve(self, project_id: str) -> Project:
        return self._http.get(Project, path_of(_ROOT, "projects", project_id))

    def update(
        self,
        project_id: str,
        *,
        name: str | None = None,
        max_bytes: int | _Unset | None = UNSET,
        base_models: Sequence[str] | _Unset | None = UNSET,
    ) -> Project:
        """Change a project. None as the quota removes the quota; None as the list of base models
        allows all base models."""
        body: dict[str, Any] = _sent(name=name)  # Any: JSON
        if not isinstance(max_bytes, _Unset):
            body["max_bytes"] = max_bytes
        if not isinstance(base_models, _Unset):
            body["base_models"] = None if base_models is None else [*base_models]
        return self._http.post(Project, path_of(_ROOT, "projects", project_id), json=body)

    def archive(self, project_id: str) -> Project:
        """Archive a project: its keys stop working immediately."""
        return self._http.post(Project, path_of(_ROOT, "projects", project_id, "archive"))


class Users:
    """Users of the organization."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self, *, limit: int | None = None, emails: Sequence[str] = ()
    ) -> Page[OrganizationUser]:
        def fetch(after: str | None) -> wire.Page[OrganizationUser]:
            params: Params = {"limit": limit, "after": after, "emails": [*emails] or None}
            return self._http.get(wire.Page[OrganizationUser], path_of(_ROOT, "users"), params)

        return first_page(fetch, None)

    def create(self, *, email: str, name: str, role: UserRole = "member") -> OrganizationUser:
        body = {"email": email, "name": name, "role": role}
        return self._http.post(OrganizationUser, path_of(_ROOT, "users"), json=body)

    def retrieve(self, user_id: str) -> OrganizationUser:
        return self._http.get(OrganizationUser, path_of(_ROOT, "users", user_id))

    def update(
        self, user_id: str, *, name: str | None = None, role: UserRole | None = None
    ) -> OrganizationUser:
        body = _sent(name=name, role=role)
        return self._http.post(OrganizationUser, path_of(_ROOT, "users", user_id), json=body)

    def delete(self, user_id: str) -> Deleted:
        """Delete a user; the user's keys are revoked."""
        return self._http.delete(Deleted, path_of(_ROOT, "users", user_id))


class AdminApiKeys:
    """Keys that may do everything in all projects."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(self, *, limit: int | None = None) -> Page[AdminApiKey]:
        def fetch(after: str | None) -> wire.Page[AdminApiKey]:
            params: Params = {"limit": limit, "after": after}
            path = path_of(_ROOT, "admin_api_keys")
            return self._http.get(wire.Page[AdminApiKey], path, params)

        return first_page(fetch, None)

    def create(self, *, name: str, expires_in_seconds: int | None = None) -> AdminApiKeyCreated:
        """Create an admin key. Only the returned object has the key itself, in `value`."""
        body = _sent(name=name, expires_in_seconds=expires_in_seconds)
        return self._http.post(AdminApiKeyCreated, path_of(_ROOT, "admin_api_keys"), json=body)

    def retrieve(self, key_id: str) -> AdminApiKey:
        return self._http.get(AdminApiKey, path_of(_ROOT, "admin_api_keys", key_id))

    def delete(self, key_id: str) -> Deleted:
        """Revoke an admin key immediately."""
        return self._http.delete(Deleted, path_of(_ROOT, "admin_api_keys", key_id))


class AuditLogs:
    """The audit log, for admins."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self,
        *,
        project_id: str | None = None,
        actor_id: str | None = None,
        action: str | None = None,
        object_id: str | None = None,
        created_after: int | None = None,
        created_before: int | None = None,
        limit: int | None = None,
        order: Literal["asc", "desc"] | None = None,
    ) -> Page[AuditLogEntry]:
        """List entries, newest first.

        `actor_id`: id of a key or of a user. `action`: first part of an action, such as `DELETE
        /files`. `object_id`: id of an object that was read or changed. `created_after` and
        `created_before`: Unix seconds."""

        def fetch(after: str | None) -> wire.Page[AuditLogEntry]:
            params: Params = {
                "project_id": project_id,
                "actor_id": actor_id,
                "action": action,
                "object_id": object_id,
                "created_after": created_after,
                "created_before": created_before,
                "limit": limit,
                "order": order,
                "after": after,
            }
            return self._http.get(wire.Page[AuditLogEntry], path_of(_ROOT, "audit_logs"), params)

        return first_page(fetch, None)


class Storage:
    """Stored bytes, free disk, and the last runs of the janitor (the server's periodic task)."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def retrieve(self) -> OrganizationStorage:
        """Return the stored bytes by kind of content and by project, the free disk, and the status
        of the janitor (the server's periodic task)."""
        return self._http.get(OrganizationStorage, path_of(_ROOT, "storage"))


class Organization:
    """`client.admin.organization`."""

    def __init__(self, http: Http) -> None:
        self.audit_logs = AuditLogs(http)
        self.storage = Storage(http)
        self.projects = Projects(http)
        self.users = Users(http)
        self.admin_api_keys = AdminApiKeys(http)


class Admin:
    """`client.admin`."""

    def __init__(self, http: Http) -> None:
        self.organization = Organization(http)

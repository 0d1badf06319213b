"""Projects, users, members and API keys, in the format of OpenAI's administration API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .base import Request, Response, Text
from .bounds import MAX_COUNT, ObjectId

Role = Literal["viewer", "member", "lead", "admin"]
"""Role of a caller. A `viewer` may only read. A `member` may also upload, train and chat. A `lead`
may also manage members and keys of the project. An `admin` may do everything in all projects."""
ProjectRole = Literal["viewer", "member", "lead"]
UserRole = Literal["admin", "member"]
"""Role in the organization: an `admin` may do everything; a `member` has only the rights of its
role in each project."""
Verb = Literal["read", "write", "chat", "manage", "administer"]
"""Kind of action that a role or a key allows."""

MAX_KEY_SECONDS = 10 * 366 * 86_400
MAX_REQUESTS = 1_000_000
MAX_BASE_MODELS = 1000

Name = Annotated[Text, Field(min_length=1, max_length=120)]
Email = Annotated[Text, Field(max_length=254, pattern=r"^[^@\s]+@[^@\s]+$")]
Seconds = Annotated[int, Field(ge=60, le=MAX_KEY_SECONDS)]
RequestLimit = Annotated[int, Field(ge=1, le=MAX_REQUESTS)]
Bytes = Annotated[int, Field(ge=0, le=MAX_COUNT)]
BaseModels = Annotated[
    list[Annotated[Text, Field(max_length=512)]], Field(max_length=MAX_BASE_MODELS)
]


class Project(Response):
    """A project: files, jobs and models that only its members can use."""

    id: str
    object: Literal["organization.project"] = "organization.project"
    name: str
    """Name of the project."""
    created_at: int
    archived_at: int | None = None
    """Time when the project was archived. Since then, no key gives access to the project."""
    status: Literal["active", "archived"]
    """State of the project: `active` or `archived`."""
    slug: str
    """Name of the project inside the names of its tuned models."""
    max_bytes: int | None = None
    """Quota of stored bytes; None means no quota."""
    base_models: list[str] | None = None
    """Base models that the project may use; None means all base models of the server."""


class ProjectCreate(Request):
    """Request to create a project."""

    name: Name
    """Name of the project."""
    max_bytes: Bytes | None = None
    """Quota of stored bytes: files, uploads, models and resume points. None means no quota."""
    base_models: BaseModels | None = None
    """Base models that the project may use; None means all base models of the server."""


class ProjectUpdate(Request):
    """Request to change a project. A missing field stays unchanged."""

    name: Name | None = None
    """Name of the project; a new name does not change the names of tuned models."""
    max_bytes: Bytes | None = None
    """Quota of stored bytes; null removes the quota."""
    base_models: BaseModels | None = None
    """Base models that the project may use; null allows all."""


class OrganizationUser(Response):
    """A user of the organization."""

    id: str
    object: Literal["organization.user"] = "organization.user"
    name: str
    """Name of the person."""
    email: str
    """E-mail address."""
    role: UserRole
    """Role in the organization."""
    added_at: int
    """Time when the user was added."""


class UserCreate(Request):
    """Request to add a user."""

    email: Email
    """E-mail address; another user must not have the same address."""
    name: Name
    """Name of the person."""
    role: UserRole = "member"
    """Role in the organization. A `member` has only the rights of its role in each project."""


class UserUpdate(Request):
    """Request to change a user. A missing field stays unchanged."""

    name: Name | None = None
    """Name of the person."""
    role: UserRole | None = None
    """Role in the organization."""


class ProjectUser(Response):
    """A member of a project."""

    id: str
    """Id of the user."""
    object: Literal["organization.project.user"] = "organization.project.user"
    name: str
    """Name of the person."""
    email: str
    """E-mail address."""
    role: ProjectRole
    """Role in the project."""
    added_at: int
    """Time when the user was added to the project."""


class ProjectUserCreate(Request):
    """Request to add a user to a project."""

    user_id: ObjectId | None = None
    """Id of the user; give either `user_id` or `email`."""
    email: Email | None = None
    """E-mail address of the user."""
    role: ProjectRole = "member"
    """Role in the project."""


class ProjectUserUpdate(Request):
    """Request to change a member's role."""

    role: ProjectRole
    """Role in the project."""


class KeyUser(Response):
    """User who owns a key."""

    id: str
    name: str
    """Name of the person."""
    email: str
    """E-mail address."""
    role: str
    """Role of the key."""
    created_at: int


class KeyService(Response):
    """Owner of a key without a user: the service that uses the key."""

    id: str
    name: str
    """Name of the key."""
    role: str
    """Role of the key."""
    created_at: int


class KeyOwner(Response):
    """Owner of a key, in OpenAI's format."""

    type: Literal["user", "service_account"]
    """Kind of owner: `user`, or `service_account` for the key of a service."""
    user: KeyUser | None = None
    """User who owns the key."""
    service_account: KeyService | None = None
    """Service that uses the key."""


class ProjectApiKey(Response):
    """An API key of a project, without its secret."""

    id: str
    object: Literal["organization.project.api_key"] = "organization.project.api_key"
    name: str
    """Name of the key."""
    redacted_value: str
    """First characters of the key."""
    created_at: int
    last_used_at: int | None = None
    """Time of the last request; the value may be a minute old."""
    expires_at: int | None = None
    """Time when the key stops working; None means never."""
    owner: KeyOwner
    """Owner of the key."""
    owner_project_access: Literal["active", "inactive"] = "active"
    """OpenAI's field; always `active`, because only keys with access are listed."""
    role: Role
    """Role of the key."""
    verbs: list[Verb] | None = None
    """Verbs that the key is limited to; None means all verbs of its role."""
    requests_per_minute: int | None = None
    """Rate limit of the key; None means the server's default."""


class ProjectApiKeyCreated(ProjectApiKey):
    """A new API key. Only this response has the secret."""

    value: str
    """The key itself; the server stores only its SHA-256."""


class ProjectApiKeyCreate(Request):
    """Request to create an API key of a project."""

    name: Name
    """Name of the key, for example its purpose."""
    role: ProjectRole = "member"
    """Role of the key. A user's key never has more rights than the user."""
    verbs: Annotated[list[Verb], Field(max_length=5)] | None = None
    """Verbs that the key is limited to; None means all verbs of its role."""
    expires_in_seconds: Seconds | None = None
    """Lifetime of the key; None means that it does not expire."""
    user_id: ObjectId | None = None
    """Member of the project who owns the key; None for the key of a service."""
    requests_per_minute: RequestLimit | None = None
    """Rate limit of the key; None means the server's default."""


class AdminKeyOwner(Response):
    """Owner of an admin key, in OpenAI's format."""

    id: str
    object: str = "organization.user"
    type: str = "user"
    """OpenAI's field, with the value `user`."""
    name: str
    """Name of the key."""
    role: str = "owner"
    """Role of the owner: always `owner`, which is OpenAI's word for an admin."""
    created_at: int


class AdminApiKey(Response):
    """An API key that may do everything, without its secret."""

    id: str
    object: Literal["organization.admin_api_key"] = "organization.admin_api_key"
    name: str
    """Name of the key."""
    redacted_value: str
    """First characters of the key."""
    created_at: int
    expires_at: int | None = None
    """Time when the key stops working; None means never."""
    last_used_at: int | None = None
    """Time of the last request; the value may be a minute old."""
    owner: AdminKeyOwner
    """Owner of the key."""


class AdminApiKeyCreated(AdminApiKey):
    """A new admin key. Only this response has the secret."""

    value: str
    """The key itself; the server stores only its SHA-256."""


class AdminApiKeyCreate(Request):
    """Request to create an admin key."""

    name: Name
    """Name of the key."""
    expires_in_seconds: Seconds | None = None
    """Lifetime of the key; None means that it does not expire."""


class Deleted(Response):
    """Confirmation that an object of the organization was deleted."""

    id: str
    object: str
    deleted: bool = True
    """Always true."""


class MyProject(Response):
    """A project to which the caller has access."""

    id: str
    name: str
    """Name of the project."""
    role: Role
    """The caller's role in the project."""


class Me(Response):
    """The caller of a request: its key, its user and its project."""

    object: Literal["me"] = "me"
    id: str
    """Id of the user, or of the key if the key belongs to no user."""
    name: str
    """Name of the user, or of the key."""
    email: str | None = None
    """The user's e-mail address."""
    key_id: str
    """Id of the API key."""
    role: Role
    """Role in `project`."""
    verbs: list[Verb]
    """Verbs that the key allows in `project`."""
    expires_at: int | None = None
    """Time when the key stops working; None means never."""
    project: MyProject
    """Project of this request."""
    projects: list[MyProject]
    """All projects to which the key gives access."""


class CheckpointPermission(Response):
    """Permission of another project to use a tuned model."""

    id: str
    object: Literal["checkpoint.permission"] = "checkpoint.permission"
    created_at: int
    project_id: str
    """Project that may use the model."""


class CheckpointPermissionCreate(Request):
    """Request to share a tuned model with projects."""

    project_ids: Annotated[list[ObjectId], Field(min_length=1, max_length=100)]
    """Projects that may use the model."""

"""Principal: who sends a request, in which project, with which rights."""

from __future__ import annotations

from dataclasses import dataclass

from tunesmith_schema import Role, Verb

_READ: frozenset[Verb] = frozenset({"read"})
_MEMBER: frozenset[Verb] = _READ | {"write", "chat"}
_LEAD: frozenset[Verb] = _MEMBER | {"manage"}
VERBS: dict[Role, frozenset[Verb]] = {
    "viewer": _READ,
    "member": _MEMBER,
    "lead": _LEAD,
    "admin": _LEAD | {"administer"},
}
"""Verbs (rights) of each role, from the weakest to the strongest role."""
_RANKS = {role: rank for rank, role in enumerate(VERBS)}


@dataclass(frozen=True, kw_only=True)
class ProjectLimits:
    """Project of a request, with its quota and its base models."""

    project_id: str
    max_bytes: int | None = None
    """Quota of stored bytes; None means no quota."""
    base_models: frozenset[str] | None = None
    """Base models that the project may use; None means all."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Caller of a request, from its API key."""

    key_id: str
    role: Role
    """Role in the project of this request."""
    project: ProjectLimits
    """Project of this request."""
    verbs: frozenset[Verb]
    """Verbs that the key allows in this project."""
    user_id: str | None = None
    """Owner of the key; None for the key of a service."""
    requests_per_minute: int | None = None
    """Rate limit of the key; None means the server's default."""

    @property
    def project_id(self) -> str:
        return self.project.project_id

    @property
    def use(self) -> tuple[str, str]:
        """Key and project of this request."""
        return self.key_id, self.project.project_id

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


def weaker(one: Role, other: Role) -> Role:
    """Return the role with fewer rights."""
    return min(one, other, key=_RANKS.__getitem__)


def allowed_verbs(role: Role, limits: list[Verb] | None) -> frozenset[Verb]:
    """Return the verbs of a key with this role. `limits`: the only verbs that the key may have;
    None means all verbs of the role."""
    return VERBS[role] if limits is None else VERBS[role] & set(limits)

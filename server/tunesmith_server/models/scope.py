"""Scope of a database session: the session of a user's request sees and writes only one project's
rows. The session also sees the models that other projects share with its project.

The scope is part of the session, so no query can leave it out. SQLAlchemy adds the condition for
the project to every SELECT, UPDATE and DELETE, also in subqueries. A query that needs rows of all
projects, for example a position in the queue, is marked with `all_projects`. Sessions without a
scope belong to workers, the janitor and the command line.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Executable, event, or_, select
from sqlalchemy.orm import ORMExecuteState, Session, UOWTransaction, with_loader_criteria

from tunesmith_server.core.principal import ProjectLimits

from .adapter import AdapterRow
from .owned import Owned
from .project import ModelPermissionRow

_LIMITS = "project_limits"
"""Key under which `session.info` has the session's ProjectLimits."""
_ALL = "all_projects"
"""Execution option of a statement that reads rows of all projects."""

S = TypeVar("S", bound=Executable)


def limit(session: Session, project: ProjectLimits) -> Session:
    """Limit a new session to one project and return the session."""
    session.info[_LIMITS] = project
    return session


def limits_of(session: Session) -> ProjectLimits | None:
    """Return the session's project, with its quota and base models; None if the session has no
    scope."""
    limits: ProjectLimits | None = session.info.get(_LIMITS)
    return limits


def project_of(session: Session) -> str | None:
    """Return the id of the session's project; None if the session has no scope."""
    limits = limits_of(session)
    return None if limits is None else limits.project_id


def all_projects(statement: S) -> S:
    """Let a statement read rows of all projects. The caller must not show rows of other projects to
    users."""
    return statement.execution_options(**{_ALL: True})


@lru_cache(maxsize=1024)
def _conditions(project_id: str, is_select: bool) -> tuple[Any, ...]:  # Any: loader options
    return tuple(
        with_loader_criteria(
            entity, _condition(entity, project_id, is_select), include_aliases=True
        )
        for entity in Owned.__subclasses__()
    )


def _condition(entity: Any, project_id: str, is_select: bool) -> ColumnElement[bool]:
    own: ColumnElement[bool] = entity.project_id == project_id
    if entity is not AdapterRow or not is_select:
        return own
    shared = select(ModelPermissionRow.model).where(ModelPermissionRow.project_id == project_id)
    return or_(own, AdapterRow.model.in_(shared))


@event.listens_for(Session, "do_orm_execute")
def _limit_statement(state: ORMExecuteState) -> None:
    project_id = project_of(state.session)
    if project_id is None or state.is_insert or state.execution_options.get(_ALL):
        return
    state.statement = state.statement.options(*_conditions(project_id, state.is_select))


@event.listens_for(Session, "before_flush")
def _own_new_rows(session: Session, context: UOWTransaction, objects: object) -> None:
    """Set the session's project in new rows without a project. Raises an error if neither the row
    nor the session has a project, or if their projects differ."""
    project_id = project_of(session)
    for row in session.new:
        if not isinstance(row, Owned):
            continue
        row.project_id = row.project_id or project_id  # type: ignore[assignment]  # checked below
        if row.project_id is None or project_id not in (None, row.project_id):
            raise RuntimeError(f"{type(row).__name__} of project {row.project_id} in {project_id}")

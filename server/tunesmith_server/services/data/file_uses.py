"""Jobs and evaluations that use a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Select, case, func, literal, null, or_, select, union_all
from sqlalchemy.orm import Session

from tunesmith_schema import FileUse, ModelUse
from tunesmith_server.models import EvaluationRow, JobRow
from tunesmith_server.models.scope import all_projects

from ..pages import PageBuilder, json_of, read_page
from ..paging import Order, unknown_cursor

NAME_OF_JOB = func.coalesce(JobRow.name, JobRow.suffix).label("name")


def list_uses(
    session: Session, file_id: str, *, after: str | None, limit: int, order: Order
) -> PageBuilder:
    """Return the jobs and evaluations that have this file, newest first."""
    role = case((JobRow.training_file == file_id, "training_file"), else_="validation_file")
    jobs = select(
        JobRow.id,
        JobRow.created_at,
        literal("fine_tuning.job").label("kind"),
        role.label("role"),
        JobRow.state.label("status"),
        JobRow.model,
        NAME_OF_JOB,
    ).where(or_(JobRow.training_file == file_id, JobRow.validation_file == file_id))
    evaluations = select(
        EvaluationRow.id,
        EvaluationRow.created_at,
        literal("evaluation"),
        literal("file"),
        EvaluationRow.status,
        EvaluationRow.model,
        null(),
    ).where(EvaluationRow.file == file_id)
    return read_uses(session, (jobs, evaluations), FileUse, after=after, limit=limit, order=order)


def read_uses(
    session: Session,
    queries: Sequence[Select[*tuple[Any, ...]]],
    use: type[FileUse | ModelUse],
    *,
    after: str | None,
    limit: int,
    order: Order,
) -> PageBuilder:
    """Return a page of the jobs and evaluations that the queries select, newest first. Each query
    has the columns `id`, `created_at`, `kind`, `role`, `status`, `model` and `name`."""
    uses = union_all(*queries).subquery()
    return read_page(
        session,
        select(uses),
        (uses.c.created_at, uses.c.id),
        after=_key_of(session, after) if after else None,
        limit=limit,
        order=order,
        key_of=lambda row: (row.created_at, row.id),
        items_of=partial(_items, use),
    )


def count_uses(session: Session, file_ids: Sequence[str]) -> dict[str, int]:
    """Return the number of jobs and evaluations that use each of the files; files without a use are
    left out. A job with the same file for training and validation counts once.

    Only jobs and evaluations of a file's own project can use the file, so the query needs no
    condition for the project. The indexes on file ids answer it; with the condition, SQLite scans
    all jobs of the project."""
    training, validation, rows = JobRow.training_file, JobRow.validation_file, func.count()
    uses = union_all(
        select(training.label("file"), rows.label("uses"))
        .where(training.in_(file_ids))
        .group_by(training),
        select(validation, rows)
        .where(validation.in_(file_ids), validation != training)
        .group_by(validation),
        select(EvaluationRow.file, rows)
        .where(EvaluationRow.file.in_(file_ids))
        .group_by(EvaluationRow.file),
    ).subquery()
    query = select(uses.c.file, func.sum(uses.c.uses)).group_by(uses.c.file)
    counts = session.execute(all_projects(query))
    return {file_id: int(count) for file_id, count in counts}


def _key_of(session: Session, after: str) -> tuple[float, str]:
    user = session.get(JobRow, after) or session.get(EvaluationRow, after)
    if user is None:
        raise unknown_cursor(after, "job or evaluation")
    return user.created_at, user.id


def _items(
    use: type[FileUse | ModelUse],
    rows: Sequence[Any],  # Any: rows of columns
) -> Iterator[tuple[str, bytes]]:
    for row in rows:
        item = use(
            id=row.id,
            kind=row.kind,
            role=row.role,
            created_at=int(row.created_at),
            status=row.status,
            model=row.model,
            name=row.name,
        )
        yield item.id, json_of(item)

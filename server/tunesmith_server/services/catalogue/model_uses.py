"""Jobs and evaluations that use a model."""

from __future__ import annotations

from sqlalchemy import case, literal, null, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import ModelUse
from tunesmith_server.models import EvaluationRow, JobRow

from ..data.file_uses import NAME_OF_JOB, read_uses
from ..pages import PageBuilder
from ..paging import Order


def list_uses(
    session: Session, model: str, *, after: str | None, limit: int, order: Order
) -> PageBuilder:
    """Return the jobs that start from this model, and the evaluations that measure this model or
    compare another model with it, newest first."""
    jobs = select(
        JobRow.id,
        JobRow.created_at,
        literal("fine_tuning.job").label("kind"),
        literal("base_model").label("role"),
        JobRow.state.label("status"),
        JobRow.model,
        NAME_OF_JOB,
    ).where(JobRow.model == model)
    evaluations = select(
        EvaluationRow.id,
        EvaluationRow.created_at,
        literal("evaluation"),
        case((EvaluationRow.model == model, "model"), else_="against"),
        EvaluationRow.status,
        EvaluationRow.model,
        null(),
    ).where(or_(EvaluationRow.model == model, EvaluationRow.against == model))
    return read_uses(session, (jobs, evaluations), ModelUse, after=after, limit=limit, order=order)

"""Retention of checkpoints: deletes rows beyond `recipe.save_total_limit`."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL, Recipe
from tunesmith_schema.renames import current_names
from tunesmith_schema.retention import checkpoints_to_drop, selection_loss
from tunesmith_server.models import AdapterRow, CheckpointRow, JobRow


def drop_beyond_limit(session: Session, job: JobRow) -> None:
    """Delete checkpoints beyond the limit, but keep base models of unfinished jobs. The janitor's
    next sweep deletes the stored files."""
    rows = {
        row.step: row
        for row in session.scalars(select(CheckpointRow).where(CheckpointRow.job_id == job.id))
    }
    values = {step: selection_loss(row.metrics) for step, row in rows.items()}
    for step in checkpoints_to_drop(values, Recipe.model_validate(current_names(job.recipe))):
        adapter_id = rows[step].adapter_id
        user = select(JobRow.id).where(
            JobRow.base_adapter_id == adapter_id, JobRow.state.not_in(TERMINAL)
        )
        if session.scalar(user) is None:
            session.delete(rows[step])
            session.flush()
            session.delete(session.get_one(AdapterRow, adapter_id))

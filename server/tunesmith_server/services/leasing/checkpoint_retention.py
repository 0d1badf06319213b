"""Retention of checkpoints: deletes rows beyond `recipe.save_total_limit`."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import TERMINAL
from tunesmith_schema.retention import checkpoints_to_drop, selection_loss
from tunesmith_server.models import AdapterRow, CheckpointRow, JobRow

from ..catalogue import adapters
from ..training import stored_job


def drop_beyond_limit(session: Session, job: JobRow) -> None:
    """Delete a job's checkpoints beyond the limit, but keep checkpoints that are the base model of
    an unfinished job. The janitor's next sweep deletes the stored files."""
    rows = {
        row.step: row
        for row in session.scalars(select(CheckpointRow).where(CheckpointRow.job_id == job.id))
    }
    values = {step: selection_loss(row.metrics) for step, row in rows.items()}
    for step in checkpoints_to_drop(values, stored_job.recipe(job)):
        adapter_id = rows[step].adapter_id
        # Lock first, because a new job locks the weights that it starts from.
        adapter = session.get_one(AdapterRow, adapter_id, with_for_update=True)
        user = select(JobRow.id).where(
            JobRow.base_adapter_id == adapter_id, JobRow.state.not_in(TERMINAL)
        )
        if session.scalar(user) is None:
            session.delete(rows[step])
            session.flush()
            session.delete(adapter)
            adapters.forget_permissions(session, [adapter.model])

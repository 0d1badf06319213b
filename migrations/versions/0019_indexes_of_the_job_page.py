"""Add indexes for queries of the job page: forks, retries, warnings, and events that are not
metrics."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_OF_EVENTS = {"ix_job_events_told": "kind <> 'metrics'", "ix_job_events_warned": "level <> 'info'"}


def upgrade() -> None:
    op.create_index("ix_jobs_forks", "jobs", ["forked_from", "created_at", "id"])
    op.create_index("ix_jobs_retries", "jobs", ["retry_of", "created_at", "id"])
    op.drop_index("ix_jobs_retry_of", "jobs")
    for name, condition in _OF_EVENTS.items():
        op.create_index(
            name,
            "job_events",
            ["job_id", "seq"],
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )


def downgrade() -> None:
    for name in _OF_EVENTS:
        op.drop_index(name, "job_events")
    op.create_index("ix_jobs_retry_of", "jobs", ["retry_of"])
    op.drop_index("ix_jobs_retries", "jobs")
    op.drop_index("ix_jobs_forks", "jobs")

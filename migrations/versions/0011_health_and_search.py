"""Store a job's health, last metrics, first claim and method. Add indexes for the filters of the
lists."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column("method_name", sa.String(length=16), nullable=False, server_default="supervised"),
    )
    op.add_column("jobs", sa.Column("started_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("health", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("last_metrics", sa.JSON(), nullable=True))
    # A JSON path would fail on a damaged row; the text shows the method of every readable row.
    op.execute(
        "UPDATE jobs SET method_name = 'reinforcement' WHERE REPLACE(CAST(method AS TEXT), ' ', '')"
        ' LIKE \'%"type":"reinforcement"%\''
    )
    op.execute(
        "UPDATE jobs SET started_at = (SELECT MIN(created_at) FROM job_events WHERE "
        "job_events.job_id = jobs.id AND kind = 'state' AND message LIKE 'claimed by %')"
    )
    op.create_index(
        "ix_jobs_list",
        "jobs",
        ["created_at", "id", "state", "method_name", "model", "suffix", "fine_tuned_model"],
    )
    op.drop_index("ix_jobs_created_at", "jobs")


def downgrade() -> None:
    op.create_index("ix_jobs_created_at", "jobs", ["created_at"])
    op.drop_index("ix_jobs_list", "jobs")
    for column in ("last_metrics", "health", "started_at", "method_name"):
        op.drop_column("jobs", column)

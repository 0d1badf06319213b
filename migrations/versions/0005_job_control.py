"""Create the table of resume points. Add columns for stops, failures, retries and forks of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "resume_points",
        sa.Column("job_id", sa.String(length=40), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("stays", sa.Boolean(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"]),
        sa.PrimaryKeyConstraint("job_id", "step"),
    )
    for column in (
        sa.Column("stop_requested", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("failures", sa.JSON(), nullable=False, server_default="[]"),
        sa.Column("not_before", sa.Double()),
        sa.Column("forked_from", sa.String(length=40)),
        sa.Column("forked_step", sa.Integer()),
        sa.Column("retry_of", sa.String(length=40)),
    ):
        op.add_column("jobs", column)
    op.add_column("workers", sa.Column("not_ready", sa.String(length=500)))
    op.create_index("ix_jobs_retry_of", "jobs", ["retry_of"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_jobs_retry_of", "jobs")
    op.drop_column("workers", "not_ready")
    # Add each column alone: rebuilding the table on SQLite would break references to its rows.
    for column in (
        "retry_of",
        "forked_step",
        "forked_from",
        "not_before",
        "failures",
        "stop_requested",
    ):
        op.drop_column("jobs", column)
    op.drop_table("resume_points")

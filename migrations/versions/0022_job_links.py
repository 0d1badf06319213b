"""Add the table of links that show a job to people without a key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_links",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=False, server_default="proj-default"),
        sa.UniqueConstraint("sha256"),
    )
    op.create_index("ix_job_links_job_id", "job_links", ["job_id"])
    op.create_index("ix_job_links_expires_at", "job_links", ["expires_at"])


def downgrade() -> None:
    op.drop_table("job_links")

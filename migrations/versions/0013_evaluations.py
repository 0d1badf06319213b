"""Create the table of evaluations on demand."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("owner", sa.String(length=40), nullable=False),
        sa.Column("model", sa.String(length=512), nullable=False),
        sa.Column("against", sa.String(length=512), nullable=True),
        sa.Column("file", sa.String(length=40), nullable=True),
        sa.Column("filename", sa.String(length=255), nullable=True),
        sa.Column("grader", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("verdict", sa.String(length=1000), nullable=True),
        sa.Column("result", sa.JSON(), nullable=True),
        sa.Column("task_results", sa.JSON(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", sa.Double(), nullable=True),
        sa.Column("losses", sa.Integer(), nullable=False),
        sa.Column("woken_at", sa.Double(), nullable=False),
        sa.Column("request_key", sa.String(length=64), nullable=True),
        sa.Column("request_sha256", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("request_key"),
    )
    op.create_index("ix_evaluations_queue", "evaluations", ["status", "created_at"])
    op.create_index(op.f("ix_evaluations_created_at"), "evaluations", ["created_at"])
    op.create_index(op.f("ix_evaluations_file"), "evaluations", ["file"])


def downgrade() -> None:
    op.drop_table("evaluations")

"""Create the table of workers' credentials."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_credentials",
        sa.Column("worker_id", sa.String(length=128), nullable=False),
        sa.Column("queue", sa.String(length=16), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("enrolled_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("worker_id"),
    )
    op.create_index(
        op.f("ix_worker_credentials_enrolled_at"), "worker_credentials", ["enrolled_at"]
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_worker_credentials_enrolled_at"), table_name="worker_credentials")
    op.drop_table("worker_credentials")

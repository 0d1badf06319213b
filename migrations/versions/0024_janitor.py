"""Add the table of the last runs of the janitor, the server's periodic clean-up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "janitor",
        sa.Column("key", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("round_at", sa.Double(), nullable=True),
        sa.Column("round_seconds", sa.Double(), nullable=True),
        sa.Column("sweep_at", sa.Double(), nullable=True),
        sa.Column("sweep_seconds", sa.Double(), nullable=True),
        sa.Column("next_sweep_at", sa.Double(), nullable=True),
        sa.Column("removed_at", sa.Double(), nullable=True),
        sa.Column("removed_objects", sa.Integer(), nullable=True),
        sa.Column("removed_bytes", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.String(200), nullable=True),
        sa.Column("error_at", sa.Double(), nullable=True),
    )


def downgrade() -> None:
    op.drop_table("janitor")

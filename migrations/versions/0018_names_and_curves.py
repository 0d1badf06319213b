"""Add columns for a job's name, notes and pin, and for the small curve that job lists show. Add a
table in which one row has the metrics of many steps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("name", sa.String(200), nullable=True))
    op.add_column("jobs", sa.Column("notes", sa.Text(), nullable=True))
    pinned: sa.Column[bool] = sa.Column(
        "pinned", sa.Boolean(), nullable=False, server_default=sa.text("false")
    )
    op.add_column("jobs", pinned)
    op.add_column("jobs", sa.Column("curve", sa.JSON(), nullable=True))
    sealed = sa.Column("sealed_step", sa.Integer(), nullable=False, server_default=sa.text("0"))
    op.add_column("jobs", sealed)
    op.create_table(
        "job_curves",
        sa.Column("job_id", sa.String(40), sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("void_by", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(64), primary_key=True),
        sa.Column("start", sa.Integer(), primary_key=True),
        sa.Column("coarse", sa.LargeBinary(), nullable=False),
        sa.Column("fine", sa.LargeBinary(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("job_curves")
    for column in ("sealed_step", "curve", "pinned", "notes", "name"):
        op.drop_column("jobs", column)

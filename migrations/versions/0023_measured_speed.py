"""Add the time and the step from which the speed of a job's current attempt is measured."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("measured_at", sa.Double(), nullable=True))
    op.add_column("jobs", sa.Column("measured_step", sa.Integer(), nullable=True))


def downgrade() -> None:
    for column in ("measured_step", "measured_at"):
        op.drop_column("jobs", column)

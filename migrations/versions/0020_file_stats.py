"""Add columns for the lengths, duplicates and hashes of a file's rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    file_id = sa.ForeignKey("files.id", ondelete="CASCADE")
    op.create_table(
        "file_stats",
        sa.Column("file_id", sa.String(40), file_id, primary_key=True),
        sa.Column("stats", sa.JSON(), nullable=False),
        sa.Column("row_hashes", sa.LargeBinary(), nullable=True),
    )


def downgrade() -> None:
    op.drop_table("file_stats")

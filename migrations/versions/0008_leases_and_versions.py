"""Add the version of a job's stored JSON documents, and leases for reading uploaded files.

Drop the column with the hash of a job's request: only `Idempotency-Key` identifies a repeated
request.

Until now, the column `readings` counted how often a worker started to read a file. From now on,
`readings` counts how often a worker was lost while it read the file. Therefore, `readings` is set
to 0 for files that no worker has read yet.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column("document_version", sa.Integer(), nullable=False, server_default=sa.text("1")),
    )
    for column in (
        sa.Column("reader", sa.String(length=128)),
        sa.Column("reading", sa.Integer(), nullable=False, server_default=sa.text("0")),
        sa.Column("reading_until", sa.Double()),
    ):
        op.add_column("files", column)
    op.drop_column("jobs", "body_sha256")
    op.execute("UPDATE files SET readings = 0 WHERE status = 'uploaded'")


def downgrade() -> None:
    for column in ("reading_until", "reading", "reader"):
        op.drop_column("files", column)
    op.drop_column("jobs", "document_version")
    op.add_column(
        "jobs",
        sa.Column("body_sha256", sa.String(length=64), nullable=False, server_default=""),
    )

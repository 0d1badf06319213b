"""Create the tables of stored objects and of the installation id. Each object that a row refers to
gets an entry in the table of stored objects."""

from __future__ import annotations

import time
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_BATCH = 1000


def upgrade() -> None:
    blobs = op.create_table(
        "blobs",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_used_at", sa.Double(), nullable=False),
        sa.Column("stored_at", sa.Double(), nullable=True),
        sa.Column("deleting_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("ix_blobs_last_used_at", "blobs", ["last_used_at"])
    op.create_table(
        "installation",
        sa.Column("key", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    now = time.time()
    # One row per content. `stored_at` stays null: earlier versions did not sync what they wrote.
    rows = [
        {"name": name, "bytes": size, "created_at": now, "last_used_at": now}
        for name, size in dict(_in_use()).items()
    ]
    for first in range(0, len(rows), _BATCH):
        op.bulk_insert(blobs, rows[first : first + _BATCH])


def _in_use() -> Iterator[tuple[str, int]]:
    """Return the name and the size of each stored object that a row of another table refers to."""
    connection = op.get_bind()
    for table, name in (("files", "sha256"), ("job_samples", "sha256"), ("upload_parts", "id")):
        columns = sa.table(table, sa.column(name), sa.column("bytes"))
        for key, size in connection.execute(sa.select(columns.c[name], columns.c.bytes)):
            yield str(key)[:64], int(size)
    for table in ("adapters", "resume_points"):
        files = sa.table(table, sa.column("files", sa.JSON())).c.files
        for (listed,) in connection.execute(sa.select(files)):
            for file in listed or []:
                if isinstance(file, dict) and isinstance(file.get("sha256"), str):
                    yield file["sha256"][:64], int(file.get("bytes") or 0)


def downgrade() -> None:
    op.drop_table("installation")
    op.drop_index("ix_blobs_last_used_at", "blobs")
    op.drop_table("blobs")

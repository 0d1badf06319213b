"""Add the scheduler's data. Projects get a weight for their share of the devices, a number of
guaranteed devices, limits and usage. Jobs get a priority, a flag for short interactive jobs, the
labels and memory that they require, and the GPU time that they used. Workers get labels and their
memory. A new table contains reservations."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

Columns = tuple[tuple[str, sa.types.TypeEngine[Any], str | None], ...]  # Any: SQLAlchemy's own

LIMITS: Columns = (
    ("max_running_jobs", sa.Integer(), None),
    ("max_queued_jobs", sa.Integer(), None),
    ("max_device_hours", sa.Double(), None),
)
COLUMNS: dict[str, Columns] = {
    "projects": (
        ("weight", sa.Double(), "1"),
        ("guaranteed_devices", sa.Integer(), "0"),
        *LIMITS,
        ("usage_log", sa.Double(), None),
    ),
    "api_keys": LIMITS,
    "jobs": (
        ("priority", sa.Integer(), "0"),
        ("interactive", sa.Boolean(), "false"),
        ("worker_labels", sa.String(2000), None),
        ("needs_bytes", sa.BigInteger(), None),
        ("claimed_at", sa.Double(), None),
        ("claimed_step", sa.Integer(), None),
        ("charged_until", sa.Double(), None),
        ("device_seconds", sa.Double(), "0"),
        ("yield_reason", sa.String(300), None),
        ("preempted_at", sa.Double(), None),
    ),
    "workers": (
        ("first_seen", sa.Double(), None),
        ("labels", sa.JSON(), None),
        ("device_bytes", sa.BigInteger(), None),
    ),
}
"""Name, type and default of each added column. A column without a default may be null. Adding a
column with a constant default changes no row, so it is fast for large tables too."""


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        for name, kind, default in columns:
            value = sa.text(default) if default else None
            column = sa.Column(name, kind, nullable=default is None, server_default=value)
            op.add_column(table, column)
    first = (sa.text("interactive DESC"), sa.text("priority DESC"))
    last = ("created_at", "id", "needs_bytes", "worker_labels")
    op.create_index("ix_jobs_claim", "jobs", ["project_id", "state", *first, *last])
    op.create_index("ix_jobs_owner", "jobs", ["owner", "state"])
    op.create_table(
        "usage_days",
        sa.Column("project_id", sa.String(40), primary_key=True),
        sa.Column("day", sa.Integer(), primary_key=True),
        sa.Column("owner", sa.String(40), primary_key=True),
        sa.Column("model", sa.String(512), primary_key=True),
        sa.Column("device_seconds", sa.Double(), nullable=False),
        sa.Column("lost_seconds", sa.Double(), nullable=False),
    )
    op.create_index("ix_usage_days_owner", "usage_days", ["owner", "day"])
    op.create_table(
        "idle_days",
        sa.Column("day", sa.Integer(), primary_key=True),
        sa.Column("host", sa.String(255), primary_key=True),
        sa.Column("seconds", sa.Double(), nullable=False),
    )
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("worker", sa.String(255), nullable=False),
        sa.Column("project_id", sa.String(40), nullable=True),
        sa.Column("starts_at", sa.Double(), nullable=False),
        sa.Column("ends_at", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(200), nullable=False),
        sa.Column("created_by", sa.String(40), nullable=False),
    )
    op.create_index("ix_reservations_worker", "reservations", ["worker"])
    op.create_index("ix_reservations_ends_at", "reservations", ["ends_at"])


def downgrade() -> None:
    for table in ("reservations", "idle_days", "usage_days"):
        op.drop_table(table)
    op.drop_index("ix_jobs_owner", "jobs")
    op.drop_index("ix_jobs_claim", "jobs")
    for table, columns in COLUMNS.items():
        for name, _, _ in columns:
            op.drop_column(table, name)

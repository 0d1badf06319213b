"""Add users, projects and their members. Files, jobs, models and other objects of users now belong
to a project. Existing objects belong to the default project. Each API key now has a role."""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

DEFAULT_PROJECT = "proj-default"
OWNED = (
    *("files", "uploads", "jobs", "adapters", "checkpoints", "idempotency_keys", "job_events"),
    "evaluations",
)
"""Tables that get a project. Adding a column with a constant default changes no row, so it is fast
for large tables too."""
JOB_LIST = ("created_at", "id", "state", "method_name", "model", "suffix", "fine_tuned_model")
KEY_COLUMNS: tuple[tuple[str, Any, str | None], ...] = (  # Any: SQLAlchemy's types
    ("project_id", sa.String(40), DEFAULT_PROJECT),
    ("role", sa.String(16), "lead"),
    ("user_id", sa.String(40), None),
    ("verbs", sa.JSON(), None),
    ("expires_at", sa.Double(), None),
    ("last_used_at", sa.Double(), None),
    ("requests_per_minute", sa.Integer(), None),
)
"""Name, type and default of each added column. A column without a default may be null."""


def upgrade() -> None:
    projects = op.create_table(
        "projects",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("slug", sa.String(32), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("archived_at", sa.Double(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.Column("base_models", sa.JSON(), nullable=True),
    )
    op.bulk_insert(
        projects, [{"id": DEFAULT_PROJECT, "name": "default", "created_at": time.time()}]
    )
    op.create_table(
        "users",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("email", sa.String(254), nullable=False, unique=True),
        sa.Column("name", sa.String(120), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
    )
    op.create_table(
        "project_members",
        sa.Column("project_id", sa.String(40), sa.ForeignKey("projects.id"), primary_key=True),
        sa.Column("user_id", sa.String(40), sa.ForeignKey("users.id"), primary_key=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("added_at", sa.Double(), nullable=False),
    )
    op.create_index("ix_project_members_user_id", "project_members", ["user_id"])
    op.create_table(
        "model_permissions",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("project_id", sa.String(40), sa.ForeignKey("projects.id"), nullable=False),
        sa.UniqueConstraint("project_id", "model"),
    )
    op.create_index("ix_model_permissions_model", "model_permissions", ["model"])
    for name, kind, default in KEY_COLUMNS:
        op.add_column(
            "api_keys", sa.Column(name, kind, nullable=default is None, server_default=default)
        )
    for name in ("project_id", "user_id"):
        op.create_index(f"ix_api_keys_{name}", "api_keys", [name])
    for table in OWNED:
        op.add_column(
            table,
            sa.Column("project_id", sa.String(40), nullable=False, server_default=DEFAULT_PROJECT),
        )
    op.drop_index("ix_jobs_list", "jobs")
    op.create_index("ix_jobs_list", "jobs", ["project_id", *JOB_LIST])
    op.drop_index("ix_files_created_at", "files")
    op.create_index("ix_files_list", "files", ["project_id", "created_at", "id"])
    op.create_index("ix_adapters_list", "adapters", ["project_id", "created_at", "id"])


def downgrade() -> None:
    op.drop_index("ix_adapters_list", "adapters")
    op.drop_index("ix_files_list", "files")
    op.create_index("ix_files_created_at", "files", ["created_at"])
    op.drop_index("ix_jobs_list", "jobs")
    op.create_index("ix_jobs_list", "jobs", JOB_LIST)
    for table in OWNED:
        op.drop_column(table, "project_id")
    for name in ("project_id", "user_id"):
        op.drop_index(f"ix_api_keys_{name}", "api_keys")
    for name, _, _ in KEY_COLUMNS:
        op.drop_column("api_keys", name)
    for table in ("model_permissions", "project_members", "users", "projects"):
        op.drop_table(table)

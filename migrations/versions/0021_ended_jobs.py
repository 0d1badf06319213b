"""Add the time at which a job ended to the index for job lists."""

from __future__ import annotations

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_COLUMNS = [
    *("project_id", "created_at", "id", "state", "method_name", "model", "suffix"),
    "fine_tuned_model",
]


def upgrade() -> None:
    op.drop_index("ix_jobs_list", "jobs")
    op.create_index("ix_jobs_list", "jobs", [*_COLUMNS, "finished_at"])


def downgrade() -> None:
    op.drop_index("ix_jobs_list", "jobs")
    op.create_index("ix_jobs_list", "jobs", _COLUMNS)

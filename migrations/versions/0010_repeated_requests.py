"""Allow several retries of a job, and store the Idempotency-Keys of uploads. From now on, a request
is a repetition only if it has the same Idempotency-Key."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_jobs_retry_of", "jobs")
    op.create_index("ix_jobs_retry_of", "jobs", ["retry_of"])
    op.add_column("files", sa.Column("request_key", sa.String(length=64), nullable=True))
    op.create_index("ix_files_request_key", "files", ["request_key"], unique=True)


def downgrade() -> None:
    op.drop_index("ix_files_request_key", "files")
    op.drop_column("files", "request_key")
    # The former index allows one retry per job, so only the oldest retry keeps its origin.
    op.execute(
        "UPDATE jobs SET retry_of = NULL WHERE EXISTS (SELECT 1 FROM jobs AS earlier WHERE "
        "earlier.retry_of = jobs.retry_of AND (earlier.created_at < jobs.created_at OR "
        "(earlier.created_at = jobs.created_at AND earlier.id < jobs.id)))"
    )
    op.drop_index("ix_jobs_retry_of", "jobs")
    op.create_index("ix_jobs_retry_of", "jobs", ["retry_of"], unique=True)

"""Add the audit log. The database refuses to change or delete entries of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_SQLITE = """
CREATE TRIGGER audit_log_no_{verb} BEFORE {verb} ON audit_log
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
"""
_POSTGRESQL = """
CREATE FUNCTION audit_log_refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$;
CREATE TRIGGER audit_log_no_change BEFORE UPDATE OR DELETE ON audit_log
FOR EACH ROW EXECUTE FUNCTION audit_log_refuse();
"""


def upgrade() -> None:
    op.create_table(
        "audit_log",
        sa.Column("seq", sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("key_id", sa.String(40), nullable=True),
        sa.Column("user_id", sa.String(40), nullable=True),
        sa.Column("project_id", sa.String(40), nullable=True),
        sa.Column("action", sa.String(120), nullable=False),
        sa.Column("target", sa.JSON(), nullable=False),
        sa.Column("address", sa.String(64), nullable=True),
        sa.Column("request_id", sa.String(64), nullable=True),
        sa.Column("before", sa.JSON(), nullable=False),
        sa.Column("after", sa.JSON(), nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
    )
    op.create_index("ix_audit_log_project_id", "audit_log", ["project_id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_POSTGRESQL)
        return
    for verb in ("UPDATE", "DELETE"):
        op.execute(_SQLITE.format(verb=verb))


def downgrade() -> None:
    op.drop_table("audit_log")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_log_refuse()")

"""PostgreSQL databases that one test after another uses. A copy of the template has 350 files; to
delete the rows of a small test takes a tenth of the time."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

MOST_ROWS = 2000
"""Most rows deleted from a database in its life. Beyond, dead rows could change plans and times."""
_TABLES = """
SELECT relname FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname
"""
_SCHEMA = """
SELECT (SELECT sum(xmin::text::bigint) FROM pg_class WHERE oid >= 16384),
       (SELECT sum(xmin::text::bigint) FROM pg_attribute WHERE attrelid >= 16384),
       (SELECT sum(xmin::text::bigint) FROM pg_constraint),
       (SELECT sum(xmin::text::bigint) FROM pg_trigger),
       (SELECT sum(xmin::text::bigint) FROM pg_proc),
       (SELECT count(*) FROM pg_statistic WHERE starelid >= 16384)
"""
"""Differs after each change of the schema, because a changed row of the catalog has a new xmin, and
after ANALYZE."""


@dataclass(frozen=True)
class Template:
    """What a database has before a test: the schema and the rows of the migrations."""

    tables: list[str]
    schema: tuple[object, ...] | None
    rows: dict[str, bytes]

    @classmethod
    def of(cls, dsn: str) -> Template:
        with psycopg.connect(dsn) as connection:
            tables = [name for (name,) in connection.execute(_TABLES)]
            rows = {}
            for table in _with_rows(connection, tables):
                with connection.cursor().copy(_copy(table, "TO STDOUT")) as copied:
                    rows[table] = b"".join(bytes(block) for block in copied)
            return cls(tables, connection.execute(_SCHEMA).fetchone(), rows)


def empty(dsn: str, template: Template) -> int | None:
    """Give a database the template's rows again. Return the number of deleted rows; None if it must
    be dropped: its schema changed, or the role may not disable foreign keys and triggers."""
    try:
        with psycopg.connect(dsn) as connection:
            if connection.execute(_SCHEMA).fetchone() != template.schema:
                return None
            connection.execute("SET session_replication_role = replica")
            deleted = 0
            for table in _with_rows(connection, template.tables):
                name = sql.Identifier(table)
                deleted += connection.execute(sql.SQL("DELETE FROM {}").format(name)).rowcount
            for table, rows in template.rows.items():
                with connection.cursor().copy(_copy(table, "FROM STDIN")) as copied:
                    copied.write(rows)
            return deleted
    except psycopg.errors.InsufficientPrivilege:
        return None


def _with_rows(connection: psycopg.Connection, tables: list[str]) -> list[str]:
    one = "SELECT {} WHERE EXISTS (SELECT 1 FROM {})"
    parts = [sql.SQL(one).format(sql.Literal(name), sql.Identifier(name)) for name in tables]
    return [name for (name,) in connection.execute(sql.SQL(" UNION ALL ").join(parts))]


def _copy(table: str, where: str) -> sql.Composed:
    return sql.SQL("COPY {} ").format(sql.Identifier(table)) + sql.SQL(where)

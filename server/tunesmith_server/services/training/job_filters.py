"""Filters of the list of jobs. All filtered columns except `metadata` are in the index
`ix_jobs_list`, so that a search with few matches reads the index and only few rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.orm import Session

from tunesmith_schema import JobState, MethodName
from tunesmith_server.core.database import readable_object
from tunesmith_server.models import ApiKeyRow, EventRow, JobRow
from tunesmith_server.models.event import NO_INFO


@dataclass(frozen=True, kw_only=True)
class JobFilters:
    """Conditions that all listed jobs meet."""

    states: list[JobState] = field(default_factory=list)
    """The job must be in one of these states; empty for all states."""
    method: MethodName | None = None
    model: str | None = None
    """Name of the base model or of the tuned model."""
    text: str | None = None
    """Text that the id, the name, the suffix or a model's name (base or tuned) must contain,
    ignoring case."""
    created_after: int | None = None
    """Earliest time of creation, Unix seconds."""
    created_before: int | None = None
    """End of the range of creation times, Unix seconds.

    Jobs created at this time are not included.
    """
    finished_after: int | None = None
    """Earliest time at which the job ended, Unix seconds. Jobs that have not ended are left out."""
    warned_after: int | None = None
    """Earliest time of the job's newest warning or error, Unix seconds."""
    owner: str | None = None
    """Id or name of the API key that created the job."""
    forked_from: str | None = None
    retry_of: str | None = None
    pinned: bool | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    without_metadata: bool = False

    def conditions(self, session: Session) -> Iterator[ColumnElement[bool]]:
        if self.states:
            # The concatenation keeps SQLite from using the index of the queue, which is in another
            # order: it would read and sort all jobs of the state.
            yield JobRow.state.concat("").in_(self.states)
        if self.method:
            yield JobRow.method_name == self.method
        if self.model:
            yield or_(JobRow.model == self.model, JobRow.fine_tuned_model == self.model)
        if self.text:
            yield _contains(session, self.text)
        if self.created_after is not None:
            yield JobRow.created_at >= self.created_after
        if self.created_before is not None:
            yield JobRow.created_at < self.created_before
        if self.finished_after is not None:
            yield JobRow.finished_at >= self.finished_after
        if self.warned_after is not None:
            yield _has_warned(self.warned_after)
        if self.owner:
            key_ids = select(ApiKeyRow.id).where(ApiKeyRow.name == self.owner)
            yield or_(JobRow.owner == self.owner, JobRow.owner.in_(key_ids))
        if self.forked_from:
            yield JobRow.forked_from == self.forked_from
        if self.retry_of:
            yield JobRow.retry_of == self.retry_of
        if self.pinned is not None:
            yield JobRow.pinned.is_(self.pinned)
        for key, value in self.metadata.items():
            yield _has_label(session, key, value)
        if self.without_metadata:
            yield JobRow.labels.is_(None)


def _contains(session: Session, part: str) -> ColumnElement[bool]:
    """Return the SQL condition that a searched column contains `part`, ignoring case."""
    columns = (JobRow.id, JobRow.name, JobRow.suffix, JobRow.model, JobRow.fine_tuned_model)
    pattern = "%" + re.sub(r"([%_\\])", r"\\\1", part) + "%"
    if session.get_bind().dialect.name == "postgresql":
        return or_(*(column.ilike(pattern, escape="\\") for column in columns))
    # SQLite's LIKE ignores the case of ASCII letters; `ilike` would cost three times as much.
    return or_(*(column.like(pattern, escape="\\") for column in columns))


def _has_warned(since: int) -> ColumnElement[bool]:
    return (
        exists()
        .where(EventRow.job_id == JobRow.id, NO_INFO, EventRow.created_at >= since)
        .correlate(JobRow)
    )


def _has_label(session: Session, key: str, value: str) -> ColumnElement[bool]:
    """Return the SQL condition that `metadata` contains this pair. The condition compares all pairs
    of `metadata`, because SQLite has no JSON path for keys with certain characters."""
    on_postgresql = session.get_bind().dialect.name == "postgresql"
    pairs_of = func.json_each_text if on_postgresql else func.json_each
    pair = pairs_of(readable_object(JobRow.labels)).table_valued("key", "value")
    return exists().where(pair.c.key == key, pair.c.value == value)

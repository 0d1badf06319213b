"""Samples of reinforcement jobs: a row for each step's file, texts read from storage by page."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from io import BytesIO

from pydantic_core import from_json
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from tunesmith_schema import Page, RunEvent, Sample
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import JobRow, SamplesRow

from .paging import Order, fetch_page, number_in, unknown_cursor


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Some samples of one step, by place, in the order that was asked for."""

    row: SamplesRow
    places: range


def record(session: Session, job: JobRow, event: RunEvent) -> None:
    """A SAMPLES event with its file; the same step of an earlier attempt is replaced."""
    step, count = event.data.get("step"), event.data.get("count")
    if not isinstance(step, int) or not isinstance(count, int) or count < 1 or not event.files:
        return
    file = event.files[0]
    session.merge(
        SamplesRow(
            job_id=job.id,
            step=step,
            created_at=event.created_at,
            count=count,
            bytes=file.bytes,
            sha256=file.sha256,
        )
    )


def forget_steps_after(session: Session, job_id: str, step: int) -> None:
    """Those of steps that a new attempt will do again. Content goes with the next sweep."""
    session.execute(delete(SamplesRow).where(SamplesRow.job_id == job_id, SamplesRow.step > step))


def find_page(
    session: Session, job_id: str, *, step: int | None, after: str | None, limit: int, order: Order
) -> tuple[list[Slice], bool]:
    """What is on a page, and whether there is more after it. Reads no content."""
    cursor = _place_of(job_id, after) if after else None
    query = select(SamplesRow).where(SamplesRow.job_id == job_id)
    if step is not None:
        query = query.where(SamplesRow.step == step)
    if cursor is not None:  # what is left of its own step comes too
        inside = SamplesRow.step <= cursor[0] if order == "desc" else SamplesRow.step >= cursor[0]
        query = query.where(inside)
    # Each step has a sample at least, but the cursor's may have none left.
    rows, _ = fetch_page(
        session, query, (SamplesRow.step.expression,), after=None, limit=limit + 2, order=order
    )
    slices: list[Slice] = []
    left = limit
    for row in rows:
        places = _places(row, cursor, order)
        if not places:
            continue
        if left == 0:
            return slices, True
        slices.append(Slice(row=row, places=places[:left]))
        left -= len(slices[-1].places)
        if len(slices[-1].places) < len(places):
            return slices, True
    return slices, False


def read_page(storage: Storage, job_id: str, slices: list[Slice], more: bool) -> Page[Sample]:
    """The samples themselves, from one step's file after the other."""
    items = [sample for one in slices for sample in _read(storage, job_id, one)]
    return Page(
        data=items,
        has_more=more,
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
    )


def _place_of(job_id: str, after: str) -> tuple[int, int]:
    """Step and place inside a sample id of this job."""
    head, _, place = after.rpartition("-")
    head, _, step = head.rpartition("-")
    found = number_in(step), number_in(place)
    if head != _prefix(job_id) or found[0] is None or found[1] is None:
        raise unknown_cursor(after, "sample")
    return found[0], found[1]


def _prefix(job_id: str) -> str:
    return f"ftsample-{job_id.removeprefix('ftjob-')}"


def _places(row: SamplesRow, cursor: tuple[int, int] | None, order: Order) -> range:
    """Of a step, all that come after the cursor."""
    here = cursor[1] if cursor is not None and cursor[0] == row.step else None
    if order == "asc":
        return range(0 if here is None else here + 1, row.count)
    return range(row.count - 1 if here is None else min(here, row.count) - 1, -1, -1)


def _read(storage: Storage, job_id: str, wanted: Slice) -> list[Sample]:
    row, places = wanted.row, wanted.places
    content = b"".join(storage.stream(row.sha256, 0, row.bytes))
    found: dict[int, Sample] = {}
    with gzip.open(BytesIO(content)) as lines:
        for place, line in enumerate(lines):
            if place in places:
                found[place] = Sample.model_validate(
                    {
                        **from_json(line),
                        "id": f"{_prefix(job_id)}-{row.step}-{place}",
                        "created_at": int(row.created_at),
                        "step": row.step,
                    }
                )
            if len(found) == len(places):
                break
    return [found[place] for place in places]

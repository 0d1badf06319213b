"""Samples of reinforcement jobs: one row and one stored file per step. Prompts and completions are
only in the files."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import and_, delete, select
from sqlalchemy.orm import Session

from tunesmith_schema import RunEvent, Sample, SampleStep
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import JobRow, MetricRow, SamplesRow

from .. import pages
from ..pages import PageBuilder, json_of
from ..paging import Order, fetch_page, number_in, unknown_cursor
from . import sample_lines


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Part of a page: samples of one step, in the requested order."""

    row: SamplesRow
    indices: range


def record(session: Session, job: JobRow, event: RunEvent) -> None:
    """Store the file of a SAMPLES event; an earlier attempt's file for the same step is
    replaced."""
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


def delete_after(session: Session, job_id: str, step: int) -> None:
    """Delete the samples of steps after `step`, because a new attempt repeats these steps. The
    janitor, the server's periodic task, later deletes the stored files."""
    session.execute(delete(SamplesRow).where(SamplesRow.job_id == job_id, SamplesRow.step > step))


def find_page(
    session: Session, job_id: str, *, step: int | None, after: str | None, limit: int, order: Order
) -> tuple[list[Slice], bool]:
    """Return the slices of a page, and True if more samples follow. This function reads only the
    database."""
    cursor = parse_cursor(job_id, after) if after else None
    query = select(SamplesRow).where(SamplesRow.job_id == job_id)
    if step is not None:
        query = query.where(SamplesRow.step == step)
    if cursor is not None:  # the cursor's step may have more samples
        in_range = SamplesRow.step <= cursor[0] if order == "desc" else SamplesRow.step >= cursor[0]
        query = query.where(in_range)
    # Each step has at least one sample, but the cursor's step may have no more samples.
    rows, _ = fetch_page(
        session, query, (SamplesRow.step.expression,), after=None, limit=limit + 2, order=order
    )
    slices: list[Slice] = []
    left = limit
    for row in rows:
        indices = _indices(row, cursor, order)
        if not indices:
            continue
        if left == 0:
            return slices, True
        slices.append(Slice(row=row, indices=indices[:left]))
        left -= len(slices[-1].indices)
        if len(slices[-1].indices) < len(indices):
            return slices, True
    return slices, False


def list_steps(
    session: Session, job_id: str, *, after: str | None, limit: int, order: Order
) -> PageBuilder:
    """Return the steps that have samples, with the number of samples and the reward that the job
    logged."""
    step = number_in(after) if after else None
    if after and step is None:
        raise unknown_cursor(after, "step")
    reward = and_(
        MetricRow.job_id == SamplesRow.job_id,
        MetricRow.step == SamplesRow.step,
        MetricRow.name == "reward",
    )
    return pages.read_page(
        session,
        select(SamplesRow.step, SamplesRow.count, MetricRow.value)
        .outerjoin(MetricRow, reward)
        .where(SamplesRow.job_id == job_id),
        (SamplesRow.step.expression,),
        after=None if step is None else (step,),
        limit=limit,
        order=order,
        key_of=lambda row: (row.step,),
        items_of=lambda rows: (
            (str(row.step), json_of(_step_to_wire(row.step, row.count, row.value))) for row in rows
        ),
        chunk=1000,
    )


def _step_to_wire(step: int, count: object, reward: float | None) -> SampleStep:
    return SampleStep(
        id=str(step), step=step, count=count if isinstance(count, int) else 0, reward=reward
    )


def read_page(storage: Storage, job_id: str, slices: list[Slice], more: bool) -> PageBuilder:
    """Read the samples of `slices` from storage, one file per step, until the page is full."""
    page = PageBuilder()
    for part in slices:
        for sample in _read(storage, job_id, part):
            if not page.add(sample.id, json_of(sample)):
                return page
    page.has_more = more
    return page


def parse_cursor(job_id: str, after: str) -> tuple[int, int]:
    """Return the step and the index that a sample id of this job contains."""
    head, _, index_text = after.rpartition("-")
    head, _, step_text = head.rpartition("-")
    step, index = number_in(step_text), number_in(index_text)
    if head != sample_lines.prefix(job_id) or step is None or index is None:
        raise unknown_cursor(after, "sample")
    return step, index


def _indices(row: SamplesRow, cursor: tuple[int, int] | None, order: Order) -> range:
    if not isinstance(row.count, int):  # a damaged row
        return range(0)
    last = cursor[1] if cursor is not None and cursor[0] == row.step else None
    if order == "asc":
        return range(0 if last is None else last + 1, row.count)
    return range(row.count - 1 if last is None else min(last, row.count) - 1, -1, -1)


def _read(storage: Storage, job_id: str, part: Slice) -> list[Sample]:
    last = max(part.indices[0], part.indices[-1])
    found = enumerate(sample_lines.read(storage, part.row, last + 1))
    lines = {index: line for index, line in found if index in part.indices}
    return [sample_lines.parse(job_id, part.row, index, lines.get(index)) for index in part.indices]

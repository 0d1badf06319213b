"""Search a job's samples with filters, and sort a step's prompts by the range of their rewards.

Only the stored files have rewards and texts, so a search reads them. A page ends after a bounded
number of samples, even if few samples match; the cursor of the page is the last sample that was
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json
from sqlalchemy import select
from sqlalchemy.orm import Session

from tunesmith_schema import ErrorCode, Sample
from tunesmith_server.core.errors import BadRequest
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import SamplesRow

from ..pages import PageBuilder, json_of
from ..paging import Order, unknown_cursor
from . import sample_lines
from .samples import parse_cursor

MAX_READ_SAMPLES = 2000
MAX_READ_BYTES = 2 * 1024 * 1024
MAX_READ_STEPS = 100
"""Maximum numbers of samples, bytes and steps that a page reads. When a page has reached its
maximum of samples, bytes or steps, no further step is read."""


@dataclass(frozen=True, kw_only=True)
class SampleFilters:
    """Filters of a list of samples; None selects all."""

    reward_lt: float | None = None
    reward_gt: float | None = None
    ungraded: bool | None = None
    """True selects completions without a reward, False completions with a reward."""
    finish_reason: str | None = None
    text: str | None = None
    """Text that the prompt or the completion must contain, ignoring case."""
    group: int | None = None
    row: int | None = None
    """Row of the training file."""

    def is_empty(self) -> bool:
        return self == SampleFilters()

    def match(self, sample: dict[str, Any]) -> bool:  # Any: JSON
        """Return True if a stored sample passes all filters."""
        reward = _reward(sample)
        if self.reward_lt is not None and not (reward is not None and reward < self.reward_lt):
            return False
        if self.reward_gt is not None and not (reward is not None and reward > self.reward_gt):
            return False
        return (
            (self.ungraded is None or self.ungraded == (reward is None))
            and self.finish_reason in (None, sample.get("finish_reason"))
            and self.group in (None, sample.get("group"))
            and self.row in (None, sample.get("row"))
            and (self.text is None or _has_text(sample, self.text.lower()))
        )


def find_steps(
    session: Session, job_id: str, *, step: int | None, after: str | None, order: Order = "desc"
) -> list[SamplesRow]:
    """Return the steps that a page may read, and the step after them, if there is one. This
    function reads only the database."""
    query = select(SamplesRow).where(SamplesRow.job_id == job_id)
    if step is not None:
        query = query.where(SamplesRow.step == step)
    if after is not None:
        last, _ = parse_cursor(job_id, after)
        query = query.where(SamplesRow.step <= last if order == "desc" else SamplesRow.step >= last)
    ordered = SamplesRow.step.desc() if order == "desc" else SamplesRow.step.asc()
    return list(session.scalars(query.order_by(ordered).limit(MAX_READ_STEPS + 1)))


def search(
    storage: Storage,
    job_id: str,
    steps: list[SamplesRow],
    filters: SampleFilters,
    *,
    after: str | None,
    limit: int,
    order: Order,
) -> PageBuilder:
    """Read the steps in their order and return the samples that pass the filters."""
    page, samples_read, bytes_read = PageBuilder(), 0, 0
    cursor = parse_cursor(job_id, after) if after else None
    for place, row in enumerate(steps):
        is_full = samples_read >= MAX_READ_SAMPLES or bytes_read >= MAX_READ_BYTES
        if place and (is_full or place == MAX_READ_STEPS or len(page) == limit):
            page.has_more = True
            if len(page) < limit:
                page.cursor = _end(steps[place - 1], order)
            return page
        start = cursor[1] if cursor is not None and cursor[0] == row.step else None
        if start is not None and after == _end(row, order):
            continue
        wanted = limit - len(page) + 1
        matches: deque[tuple[int, bytes]] = deque(maxlen=wanted if order == "desc" else None)
        for index, line in enumerate(sample_lines.read(storage, row, _count(row))):
            samples_read, bytes_read = samples_read + 1, bytes_read + len(line)
            if not _is_behind(index, start, order):
                continue
            if (order == "desc" or len(matches) < wanted) and filters.match(_parsed(line)):
                matches.append((index, line))
        for index, line in reversed(matches) if order == "desc" else matches:
            if len(page) == limit:
                page.has_more = True
                return page
            sample = sample_lines.parse(job_id, row, index, line)
            if not page.add(sample.id, json_of(sample)):
                return page
    return page


def by_spread(
    storage: Storage,
    job_id: str,
    steps: list[SamplesRow],
    filters: SampleFilters,
    *,
    after: str | None,
    limit: int,
) -> PageBuilder:
    """Return the samples of one step, grouped by prompt. The prompt with the widest range of
    rewards comes first; prompts with fewer than two rewards come last."""
    page = PageBuilder()
    for row in steps[:1]:
        places, rewards = list[tuple[int, int]](), dict[int, list[float]]()
        for index, sample in enumerate(_samples(storage, row)):
            group, reward = _group(sample), _reward(sample)
            if reward is not None:
                rewards.setdefault(group, []).append(reward)
            if filters.match(sample):
                places.append((group, index))
        spread = {group: max(all_of) - min(all_of) for group, all_of in rewards.items()}
        places.sort(key=lambda place: (-spread.get(place[0], 0.0), place))
        order = [index for _, index in places]
        if after is not None:
            order = order[_place_of(job_id, after, row, order) + 1 :]
        wanted = order[:limit]
        page.has_more = len(order) > limit
        if not wanted:
            return page
        found = enumerate(sample_lines.read(storage, row, max(wanted) + 1))
        lines = {index: line for index, line in found if index in set(wanted)}
        for index in wanted:
            shown = sample_lines.parse(job_id, row, index, lines.get(index))
            if not page.add(shown.id, json_of(shown)):
                return page
    return page


def of_prompt(storage: Storage, job_id: str, row: SamplesRow, prompt: str) -> list[Sample]:
    """Return the samples of a step with exactly this prompt."""
    lines = enumerate(sample_lines.read(storage, row, _count(row)))
    return [
        sample_lines.parse(job_id, row, index, line)
        for index, line in lines
        if _parsed(line).get("prompt") == prompt
    ]


def retrieve(storage: Storage, rows: list[SamplesRow], name: str) -> Sample | None:
    """Return the sample with this id from the stored step; None if there is none."""
    for row in rows[:1]:
        step, index = parse_cursor(row.job_id, name)
        if step == row.step and index < _count(row):
            lines = dict(enumerate(sample_lines.read(storage, row, index + 1)))
            return sample_lines.parse(row.job_id, row, index, lines.get(index))
    return None


def _place_of(job_id: str, after: str, row: SamplesRow, order: list[int]) -> int:
    step, index = parse_cursor(job_id, after)
    if step != row.step or index not in order:
        raise unknown_cursor(after, "sample")
    return order.index(index)


def needs_step() -> BadRequest:
    return BadRequest(
        ErrorCode.INVALID_REQUEST,
        "sort=spread needs a step: it sorts the prompts of one step",
        param="step",
        hint="add step=N; GET .../samples/steps lists the steps with samples",
    )


def _is_behind(index: int, start: int | None, order: Order) -> bool:
    if start is None:
        return True
    return index < start if order == "desc" else index > start


def _end(row: SamplesRow, order: Order) -> str:
    return sample_lines.sample_id(row, 0 if order == "desc" else max(_count(row) - 1, 0))


def _count(row: SamplesRow) -> int:
    return row.count if isinstance(row.count, int) else 0  # a damaged row


def _samples(storage: Storage, row: SamplesRow) -> Iterator[dict[str, Any]]:
    return map(_parsed, sample_lines.read(storage, row, _count(row)))


def _parsed(line: bytes) -> dict[str, Any]:  # Any: JSON
    try:
        sample = from_json(line)
    except ValueError:
        return {}
    return sample if isinstance(sample, dict) else {}


def _reward(sample: dict[str, Any]) -> float | None:
    reward = sample.get("reward")
    return float(reward) if isinstance(reward, int | float) else None


def _group(sample: dict[str, Any]) -> int:
    group = sample.get("group")
    return group if isinstance(group, int) else 0


def _has_text(sample: dict[str, Any], text: str) -> bool:
    return any(text in str(sample.get(name, "")).lower() for name in ("completion", "prompt"))

"""Contents of the page of completions, read with the service functions that the API's routes
use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic_core import from_json
from sqlalchemy.orm import Session

from tunesmith_schema import MAX_SAMPLES_PAGE, ErrorCode, Job, Sample, SampleStep
from tunesmith_server.core.errors import NotFound, ServiceError
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import FileRow, SamplesRow
from tunesmith_server.portal.text import clipped
from tunesmith_server.services.data import file_rows, files
from tunesmith_server.services.pages import PageBuilder
from tunesmith_server.services.results import sample_search, samples
from tunesmith_server.services.results.sample_search import SampleFilters
from tunesmith_server.services.training import jobs

from .changes import Piece, pieces
from .view import CompletionsView

_STEPS = 10_000
"""Maximum number of steps with samples that the slider shows."""
_MOMENTS = 20
_FOUND = 50
_MAX_TEXT = 4000
"""Maximum number of characters of a completion that this page shows."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Completions of one prompt in one step."""

    samples: list[Sample]
    """Completions in the order of their generation."""
    rewards: list[float]
    """Rewards of the completions that have a reward."""

    @classmethod
    def of(cls, samples: list[Sample]) -> Group:
        rewards = [sample.reward for sample in samples if sample.reward is not None]
        return cls(samples=samples, rewards=rewards)

    @property
    def first(self) -> Sample:
        return self.samples[0]

    @property
    def mean(self) -> float | None:
        return sum(self.rewards) / len(self.rewards) if self.rewards else None

    @property
    def spread(self) -> float:
        return max(self.rewards) - min(self.rewards) if self.rewards else 0.0

    @property
    def teaches_nothing(self) -> bool:
        """Return True if all rewards are equal, so that all advantages are 0."""
        return len(self.rewards) > 1 and self.spread == 0.0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Completions of one prompt at one step, for a page that follows the prompt across steps."""

    group: Group
    shown: Sample
    """Completion that is shown for this step."""
    pieces: list[Piece]
    """Text of the completion; words that the previous step's completion does not have are
    marked."""


@dataclass(frozen=True, kw_only=True)
class Completions:
    """Contents of the page."""

    job: Job
    steps: list[SampleStep]
    step: SampleStep | None
    """Step that is shown; None if the job has no samples."""
    groups: list[Group] = field(default_factory=list)
    """Prompts of the step; prompts with the widest range of rewards come first."""
    found: list[Sample] = field(default_factory=list)
    """Results of a search in all steps."""
    moments: list[Moment] = field(default_factory=list)
    """Steps of the prompt that the page follows (`CompletionsView.row`), lowest step first."""
    opened: Sample | None = None
    item: Any = None  # Any: JSON
    """Row of the training data that belongs to the open completion; None if the row cannot be
    read."""
    has_more: bool = False
    last: str = ""
    """Cursor of the next page; empty if there is no next page."""

    @property
    def every(self) -> list[Sample]:
        """Return the completions of all shown prompts."""
        groups = [*self.groups, *(moment.group for moment in self.moments)]
        return [sample for group in groups for sample in group.samples]

    @property
    def graders(self) -> list[str]:
        """Return the names of the graders' scores."""
        every = [*(sample for group in self.groups for sample in group.samples), *self.found]
        return list(dict.fromkeys(name for sample in every for name in sample.scores))


def read(session: Session, storage: Storage, view: CompletionsView) -> Completions:
    """Read the contents of the page. Raises NotFound for an unknown job."""
    row = jobs.retrieve(session, view.job_id)
    job = jobs.to_wire(row)
    listed = samples.list_steps(session, row.id, after=None, limit=_STEPS, order="asc")
    steps = [SampleStep.model_validate(item) for item in from_json(listed.content())["data"]]
    step = nearest(steps, view.step, view.came_from)
    known = Completions(job=job, steps=steps, step=step)
    if step is None:
        return known
    stored = _find(session, view, step)
    with_opened = sample_search.find_steps(session, row.id, step=view.opened_step, after=None)
    file = _file(session, job.training_file)
    session.close()  # storage may be slow
    if view.sample:
        known = _with_opened(known, storage, with_opened, view.sample, file)
    if view.row is not None:
        return _with_moments(known, storage, stored, view)
    return (_with_found if view.all_steps else _with_groups)(known, storage, stored, view)


def nearest(
    steps: Sequence[SampleStep], wanted: int | None, came_from: int | None = None
) -> SampleStep | None:
    """Return the step with samples that the page shows if the visitor asks for the step `wanted`.
    If the slider moved up, this is the first of `steps` at or after `wanted`, else the last one at
    or before it. If `wanted` is None, return the newest step."""
    if not steps:
        return None
    if wanted is None:
        return steps[-1]
    if came_from is not None and came_from < wanted:
        return next((step for step in steps if step.step >= wanted), steps[-1])
    return next((step for step in reversed(steps) if step.step <= wanted), steps[0])


def _find(session: Session, view: CompletionsView, step: SampleStep) -> list[SamplesRow]:
    after, job_id = view.after or None, view.job_id
    if view.row is not None:
        return sample_search.find_steps(session, job_id, step=None, after=after, order="asc")
    if view.all_steps:
        return sample_search.find_steps(session, job_id, step=None, after=after)
    return sample_search.find_steps(session, job_id, step=step.step, after=None)


def _with_groups(
    known: Completions, storage: Storage, stored: list[SamplesRow], view: CompletionsView
) -> Completions:
    page = sample_search.by_spread(
        storage, view.job_id, stored, view.filters, after=view.after or None,
        limit=MAX_SAMPLES_PAGE,
    )  # fmt: skip
    found, has_more, last = _page(page)
    return replace(known, groups=_groups(found), has_more=has_more, last=last)


def _with_found(
    known: Completions, storage: Storage, stored: list[SamplesRow], view: CompletionsView
) -> Completions:
    page = sample_search.search(
        storage, view.job_id, stored, view.filters, after=view.after or None,
        limit=_FOUND, order="desc",
    )  # fmt: skip
    found, has_more, last = _page(page)
    return replace(known, found=found, has_more=has_more, last=last)


def _with_moments(
    known: Completions, storage: Storage, stored: list[SamplesRow], view: CompletionsView
) -> Completions:
    page = sample_search.search(
        storage, view.job_id, stored, SampleFilters(row=view.row), after=view.after or None,
        limit=MAX_SAMPLES_PAGE, order="asc",
    )  # fmt: skip
    found, has_more, last = _page(page)
    by_step: dict[int, list[Sample]] = {}
    for sample in found:
        by_step.setdefault(sample.step, []).append(sample)
    if has_more and len(by_step) > 1:  # the last step may be cut
        by_step.popitem()
    groups = [Group.of(each) for each in by_step.values()][:_MOMENTS]
    has_more = has_more or len(groups) < len(by_step)
    last = groups[-1].samples[-1].id if groups and len(groups) < len(by_step) else last
    return replace(known, moments=_moments(groups, view.place), has_more=has_more, last=last)


def _moments(groups: Sequence[Group], place: int) -> list[Moment]:
    moments: list[Moment] = []
    for group in groups:
        shown = group.samples[min(place, len(group.samples) - 1)]
        former = moments[-1].shown.completion if moments else None
        changed = pieces(former, clipped(shown.completion, _MAX_TEXT))
        moments.append(Moment(group=group, shown=shown, pieces=changed))
    return moments


def _groups(found: Sequence[Sample]) -> list[Group]:
    by_group: dict[int, list[Sample]] = {}
    for sample in found:
        by_group.setdefault(sample.group, []).append(sample)
    return [Group.of(each) for each in by_group.values()]


def _page(page: PageBuilder) -> tuple[list[Sample], bool, str]:
    content = from_json(page.content())
    found = [Sample.model_validate(item) for item in content["data"]]
    return found, content["has_more"], content["last_id"] or ""


def _with_opened(
    known: Completions, storage: Storage, stored: list[SamplesRow], name: str, file: FileRow | None
) -> Completions:
    opened = sample_search.retrieve(storage, stored, name)
    if opened is None:
        raise NotFound(
            ErrorCode.NOT_FOUND,
            f"no completion {name!r}",
            hint="a later attempt of the job may have repeated the step of this completion",
        )
    return replace(known, opened=opened, item=_item(storage, file, opened.row) if file else None)


def _item(storage: Storage, file: FileRow, row: int) -> Any:  # Any: JSON
    with suppress(ServiceError, FileNotFoundError):
        page = file_rows.read_page(storage, file, after=None, offset=row - 1, limit=1, text=None)
        found = from_json(page.content())["data"]
        return found[0]["data"] if found and found[0]["line"] == row else None
    return None


def _file(session: Session, file_id: str) -> FileRow | None:
    with suppress(NotFound):
        return files.retrieve(session, file_id)
    return None

"""Completions of one prompt by several reinforcement jobs, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import from_json
from sqlalchemy.orm import Session

from tunesmith_schema import MAX_SAMPLES_PAGE, Sample
from tunesmith_server.core.storage import Storage
from tunesmith_server.models import JobRow, SamplesRow
from tunesmith_server.services.results import sample_search
from tunesmith_server.services.results.sample_search import MAX_READ_BYTES, SampleFilters

_STEPS = 12
"""Maximum number of a job's newest steps that are searched for the prompt.

Fewer steps are searched if the files of the steps are too large in total (`_MAX_BYTES`).
"""
_MAX_BYTES = MAX_READ_BYTES // 4
"""Maximum total size in bytes of the gzipped files that are read for one job.

The newest step is always read.
"""
_PROMPTS = 12


@dataclass(frozen=True, kw_only=True)
class Column:
    """Completions of the prompt by one job."""

    number: int
    """Number of the job on the page, from 1."""
    job_id: str
    samples: list[Sample]
    """Completions of the newest step that has the prompt, the best reward first; empty if none of
    the searched steps has the prompt."""

    @property
    def mean(self) -> float | None:
        rewards = [sample.reward for sample in self.samples if sample.reward is not None]
        return sum(rewards) / len(rewards) if rewards else None


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Completions of the same prompt by several jobs."""

    prompt: Sample | None
    """A completion of the prompt; None if no job has samples."""
    choices: list[Sample]
    """For each prompt in the first job's newest step, one completion. Prompts with the widest range
    of rewards come first."""
    columns: list[Column]


def read(session: Session, storage: Storage, jobs: Sequence[JobRow], row: int | None) -> SideBySide:
    """Read the completions of the prompt in `row` of the first job's training data. If `row` is
    None, choose the prompt with the widest range of rewards. For the other jobs, read the
    completions of a prompt with the same text."""
    known = [
        (number, job.id, sample_search.find_steps(session, job.id, step=None, after=None))
        for number, job in enumerate(jobs, 1)
    ]
    session.close()  # storage may be slow
    known = [(number, job_id, steps[:_STEPS]) for number, job_id, steps in known if steps]
    if not known:
        return SideBySide(prompt=None, choices=[], columns=[])
    choices = _choices(storage, *known[0][1:])
    if not choices:
        return SideBySide(prompt=None, choices=[], columns=[])
    prompt = next((sample for sample in choices if sample.row == row), choices[0])
    columns = [
        Column(number=number, job_id=job_id, samples=_with_prompt(storage, job_id, steps, prompt))
        for number, job_id, steps in known
    ]
    return SideBySide(prompt=prompt, choices=choices, columns=columns)


def _choices(storage: Storage, job_id: str, steps: list[SamplesRow]) -> list[Sample]:
    page = sample_search.by_spread(
        storage, job_id, steps, SampleFilters(), after=None, limit=MAX_SAMPLES_PAGE
    )
    samples = [Sample.model_validate(item) for item in from_json(page.content())["data"]]
    return list({sample.group: sample for sample in reversed(samples)}.values())[::-1][:_PROMPTS]


def _with_prompt(
    storage: Storage, job_id: str, steps: list[SamplesRow], prompt: Sample
) -> list[Sample]:
    bytes_read = 0
    for step in steps:
        if bytes_read and bytes_read + step.bytes > _MAX_BYTES:
            break
        bytes_read += step.bytes
        if samples := sample_search.of_prompt(storage, job_id, step, prompt.prompt):
            return sorted(samples, key=lambda sample: -(sample.reward or 0.0))
    return []

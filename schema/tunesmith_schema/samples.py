"""Completions that a reinforcement job generated, with their rewards."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Response

MAX_SAMPLES_PAGE = 100
"""Maximum number of samples on a page; texts are not shortened, so pages with more samples would be
too large."""


class Sample(Response):
    """A completion of a training prompt. The completions of a prompt in a step form a group."""

    id: str
    """Sample id `ftsample-<job>-<step>-<n>`, where `n` is the number of the completion within the
    step, from 0. The id is also a cursor for `after`."""
    object: Literal["fine_tuning.job.sample"] = "fine_tuning.job.sample"
    created_at: int
    """Time at which the step's samples were written, Unix seconds."""
    step: int
    """First optimiser step that trained on the completion."""
    group: int
    """Number of the prompt within the step, counted from 0."""
    row: int
    """Row of the training file, from 1."""
    prompt: str
    """Prompt text given to the model, including the chat template's special tokens."""
    completion: str
    """Completion text given to the graders."""
    reward: float | None = None
    """Reward; null if the graders could not score the completion."""
    scores: dict[str, float | None] = Field(default_factory=dict)
    """Score of each grader; null if the grader failed."""
    advantage: float | None = None
    """Advantage used in training; 0 if all rewards of the group are equal."""
    prompt_tokens: int
    """Number of tokens of the prompt."""
    completion_tokens: int
    """Number of tokens of the completion, including its end token."""
    finish_reason: Literal["stop", "length"] | str
    """Reason why the completion ended. `stop`: the model ended the completion; `length`: the
    completion reached `recipe.grpo.max_completion_length`; `unreadable`: the stored sample is lost
    or damaged."""


class SampleStep(Response):
    """A step with stored samples."""

    id: str
    """The step's number as text; also a cursor for `after`."""
    object: Literal["fine_tuning.job.sample_step"] = "fine_tuning.job.sample_step"
    step: int
    """First optimiser step that trained on the completions."""
    count: int
    """Number of completions."""
    reward: float | None = None
    """Mean reward that the job logged for the step; null if the step was not logged."""

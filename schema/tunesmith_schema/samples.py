"""What a reinforcement job drew and how it was graded."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .base import Response

MAX_SAMPLES_PAGE = 100
"""Texts are given whole, so that a page of more would be unwieldy."""


class Sample(Response):
    """One completion of a training prompt. Those of a prompt in a step are a group."""

    id: str
    """`ftsample-<job>-<step>-<n>`: usable as `after`. `n` is its place in the step, 0 first."""
    object: Literal["fine_tuning.job.sample"] = "fine_tuning.job.sample"
    created_at: int
    """When the step's samples were written, unix seconds."""
    step: int
    """Optimiser step that it was trained on in."""
    group: int
    """Which prompt of the step, 0 first."""
    row: int
    """Row of the training file, counted from 1."""
    prompt: str
    """As the model read it, the chat template's marks included."""
    completion: str
    """As the graders read it."""
    reward: float | None = None
    """What it was worth; null: no grader could say."""
    scores: dict[str, float | None] = Field(default_factory=dict)
    """By grader; null: that one failed."""
    advantage: float | None = None
    """How much better than its group, as training used it; 0 where the whole group is equal."""
    prompt_tokens: int
    """Length of the prompt."""
    completion_tokens: int
    """Length of the completion, its end token included."""
    finish_reason: Literal["stop", "length"] | str
    """`stop`: it ended by itself; `length`: it reached `recipe.grpo.max_completion_length`."""

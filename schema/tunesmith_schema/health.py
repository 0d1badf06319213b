"""Health of a job: one word and one sentence, derived from the job's metrics."""

from __future__ import annotations

from enum import StrEnum

from .base import Response


class HealthState(StrEnum):
    """Health of a job in one word."""

    LEARNING = "learning"
    """The training loss fell, or the reward rose, beyond the noise between steps."""
    DIVERGED = "diverged"
    """The loss rose and stayed high or became NaN, or the reward collapsed."""
    OVERFITTING = "overfitting"
    """The validation loss rose again while the training loss fell, or the validation reward fell
    while the training reward rose."""
    BARELY_MOVED = "barely_moved"
    """The loss or the reward hardly changed."""
    NO_REWARD_SPREAD = "no_reward_spread"
    """Reinforcement: nearly all groups had equal rewards, which give no learning signal."""
    UNCLEAR = "unclear"
    """There are too few logged steps, or the noise between steps hides any change."""


class JobHealth(Response):
    """Health of a job, derived from its metrics; it says nothing about the quality of answers."""

    state: HealthState | str
    """One word; a newer server may send a value that `HealthState` lacks."""
    text: str
    """One sentence with the figures behind the word."""
    step: int
    """Last optimiser step that was considered."""

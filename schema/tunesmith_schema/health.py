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
    """Health of a job, derived from its metrics. Health does not show the quality of the model's
    answers."""

    state: HealthState | str
    """Health in one word; a newer server may send a value that is not in `HealthState`."""
    text: str
    """One sentence that explains `state` with figures."""
    step: int
    """Last optimiser step whose metrics were used."""

"""What a job tells: events, metrics and checkpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from .base import Response


class EventKind(StrEnum):
    """Finer than OpenAI's `type`, which is `metrics` for METRICS and `message` for the rest."""

    MESSAGE = "message"
    STATE = "state"
    """The job changed state; `data.state` is the new one."""
    PHASE = "phase"
    """A part of the work ended; `data` has `phase` and `seconds`."""
    CHOICE = "choice"
    """Something was chosen automatically; `data` has `name`, `value`, `reason`."""
    METRICS = "metrics"
    """`data` has `step` and the values."""
    CHECKPOINT = "checkpoint"
    """`data` has `step` and `adapter_id`."""
    RESUME_POINT = "resume_point"
    """All that the run needs to go on from `data.step` is stored."""
    SAMPLES = "samples"
    """Reinforcement: the completions of step `data.step` are stored; `data.count` says how many."""
    RESUMED = "resumed"
    """The run goes on from `data.step`; what was told of later steps no longer counts."""


class Event(Response):
    """One thing that a job told."""

    id: str
    """`ftevent-<job>-<seq>`: usable as `after`."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"] = "info"
    message: str
    type: Literal["message", "metrics"] = "message"
    """OpenAI's coarse kind; `kind` is finer."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """Depends on `kind`."""
    kind: EventKind | str = Field(default=EventKind.MESSAGE, union_mode="left_to_right")
    """One of `EventKind`; a newer server may know more."""
    seq: int
    """1, 2, 3, ... without gaps within a job; the SSE id."""


class MetricPoint(Response):
    """All values of one optimiser step."""

    id: str
    """The step, as text: usable as `after`."""
    object: Literal["fine_tuning.job.metrics"] = "fine_tuning.job.metrics"
    step: int
    values: dict[str, float | None]
    """`train_loss` and `valid_loss` in nats per token, `learning_rate`, `grad_norm`, `epoch`,
    `tokens_per_second` (input tokens), `train_mean_token_accuracy`, `trained_tokens`,
    `embedding_learning_rate` where it is another. About once
    a second also `step_seconds`, `data_wait_share` (of the time between evaluations and
    checkpoints), `padding_share` (of the slots), means since they were last given, and memory held
    at that moment, bytes: `memory_rss`, on a GPU `memory_allocated`, `memory_reserved` and
    `memory_pinned`. `updates_lost_fraction`, full tuning in bf16: the share of weights that a
    step meant to move and that rounding left where they were. Null stands for NaN.
    Reinforcement: `reward` and `reward_std` of the step's completions, `score_<grader>` for each of
    several graders, `frac_reward_zero_std` (of the groups with rewards, those in which all are
    equal), `ungraded_share` (completions without a reward), `kl`, `entropy` (nats a token),
    `completion_length` (tokens, mean), `completion_length_max`, `truncated_share` (completions that
    reached their limit), `clip_ratio`, `rollout_gap` (mean |log-prob when drawn - in training|),
    `valid_reward`; about once a second, of the time between evaluations and checkpoints,
    `sync_share`, `generate_share`, `grade_share`, `log_probs_share`, `forward_share`,
    `backward_share` and `idle_share` (none of these but grading, nor the optimiser), and
    `generated_tokens_per_second` (of generation alone).
    """


class CheckpointMetrics(Response):
    """OpenAI's names for a checkpoint's numbers; null where nothing was measured."""

    step: float | None = None
    train_loss: float | None = None
    """Nats per token on the last training batch."""
    train_mean_token_accuracy: float | None = None
    """Share of tokens predicted right on the last training batch."""
    valid_loss: float | None = None
    """Nats per token on a part of the validation file."""
    valid_mean_token_accuracy: float | None = None
    """Share of tokens predicted right on a part of the validation file."""
    full_valid_loss: float | None = None
    """Nats per token on the whole validation file."""
    full_valid_mean_token_accuracy: float | None = None
    """Share of tokens predicted right on the whole validation file."""


class Checkpoint(Response):
    """An adapter taken on the way, usable as a model."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuning_job_id: str
    """The job that it was taken in."""
    fine_tuned_model_checkpoint: str
    """Name of the checkpoint as a model."""
    step_number: int
    """Optimiser step it was taken at."""
    metrics: CheckpointMetrics
    """The last values known at that step."""
    adapter_id: str | None = None
    """What `/v1/adapters/{id}` calls it."""

"""Progress of a job: events, metrics and checkpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from .base import Response


class EventKind(StrEnum):
    """Kind of an event, finer than OpenAI's `type`, which is `metrics` for METRICS and `message`
    for all others."""

    MESSAGE = "message"
    STATE = "state"
    """The job changed its state; `data.state` is the new state."""
    PHASE = "phase"
    """A phase of the run ended; `data` has `phase` and `seconds`."""
    CHOICE = "choice"
    """A setting was chosen automatically; `data` has `name`, `value`, `reason`."""
    METRICS = "metrics"
    """Metrics of a step; `data` has `step` and the values."""
    CHECKPOINT = "checkpoint"
    """A checkpoint was stored; `data` has `step` and `adapter_id`."""
    RESUME_POINT = "resume_point"
    """A resume point of step `data.step` was stored."""
    SAMPLES = "samples"
    """Reinforcement: the completions of step `data.step` were stored; `data.count` is their number.
    """
    RESUMED = "resumed"
    """The run continues from step `data.step`; metrics and checkpoints of later steps are obsolete.
    """


class Event(Response):
    """One event of a job."""

    id: str
    """`ftevent-<job>-<seq>`; a cursor for `after`."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"] = "info"
    message: str
    type: Literal["message", "metrics"] = "message"
    """OpenAI's coarse type; `kind` is finer."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """Content that depends on `kind`."""
    kind: EventKind | str = Field(default=EventKind.MESSAGE, union_mode="left_to_right")
    """One of `EventKind`. A newer server may send a value that is not listed there."""
    seq: int
    """Number of the event within its job: 1, 2, 3, ... without gaps. Also the SSE id."""


class MetricPoint(Response):
    """All metrics of one optimiser step."""

    id: str
    """The step as text; a cursor for `after`."""
    object: Literal["fine_tuning.job.metrics"] = "fine_tuning.job.metrics"
    step: int
    values: dict[str, float | None]
    """Metrics by name. Every step: `train_loss` and `valid_loss` (nats per token),
    `train_mean_token_accuracy`, `learning_rate`, `embedding_learning_rate` if different,
    `grad_norm`, `epoch`, `tokens_per_second` (input tokens) and `trained_tokens`. About once a
    second, as means since the last value: `step_seconds`, `data_wait_share` (share of the time
    outside evaluations and checkpoints) and `padding_share` (share of the batch positions). Also
    about once a second, the current memory in bytes: `memory_rss`, on a GPU also
    `memory_allocated`, `memory_reserved` and `memory_pinned`. Full tuning in bf16:
    `updates_lost_fraction`, the share of weights whose update was rounded away. Null is NaN.

    Reinforcement, every step: `reward` and `reward_std` of the step's completions, `score_<grader>`
    if there are several graders, `frac_reward_zero_std` (share of groups in which all rewards are
    equal, among groups with rewards), `ungraded_share` (share of completions without a reward),
    `kl`, `entropy` (nats per token), `completion_length` (mean, tokens), `completion_length_max`,
    `truncated_share` (share of completions cut at the length limit), `clip_ratio`, `rollout_gap`
    (mean absolute difference of a token's log-probability between generation and training) and
    `valid_reward`. About once a second, as shares of the time outside evaluations and checkpoints:
    `sync_share`, `generate_share`, `grade_share`, `log_probs_share`, `forward_share`,
    `backward_share` and `idle_share` (grading, and time in none of these phases or the optimiser).
    Also about once a second: `generated_tokens_per_second` (generation only).
    """


class CheckpointMetrics(Response):
    """Metrics of a checkpoint under OpenAI's names; null if not measured."""

    step: float | None = None
    train_loss: float | None = None
    """Loss of the last training batch, nats per token."""
    train_mean_token_accuracy: float | None = None
    """Share of tokens predicted correctly in the last training batch."""
    valid_loss: float | None = None
    """Loss on a part of the validation file, nats per token."""
    valid_mean_token_accuracy: float | None = None
    """Share of tokens predicted correctly in a part of the validation file."""
    full_valid_loss: float | None = None
    """Loss on the whole validation file, nats per token."""
    full_valid_mean_token_accuracy: float | None = None
    """Share of tokens predicted correctly in the whole validation file."""


class Checkpoint(Response):
    """Weights saved during training, usable as a model."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuning_job_id: str
    """Id of the job that saved the checkpoint."""
    fine_tuned_model_checkpoint: str
    """Name of the checkpoint as a model."""
    step_number: int
    """Optimiser step of the checkpoint."""
    metrics: CheckpointMetrics
    """Latest metrics at that step."""
    adapter_id: str | None = None
    """Id of the checkpoint in `/v1/adapters/{id}`."""

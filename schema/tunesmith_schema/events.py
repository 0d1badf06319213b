"""Progress of a job: events, metrics and checkpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field, JsonValue

from .base import Response


class EventKind(StrEnum):
    """Kind of an event. OpenAI's field `type` has only two values: `metrics` for METRICS, and
    `message` for all other kinds."""

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
    QUARANTINED = "quarantined"
    """An event of the trainer could not be stored; `data` has the event's `kind`, its number
    `source_seq` and the `reason`."""
    STALLED = "stalled"
    """The trainer made no progress and was stopped; `data` has `code` and `hint`. The next
    attempt continues from the newest resume point."""


class Event(Response):
    """One event of a job."""

    id: str
    """Event id `ftevent-<job>-<seq>`, also a cursor for the parameter `after`."""
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"] = "info"
    message: str
    type: Literal["message", "metrics"] = "message"
    """OpenAI's coarse type; `kind` is more precise."""
    data: dict[str, JsonValue] = Field(default_factory=dict)
    """Data of the event; `kind` determines its keys."""
    kind: EventKind | str = Field(default=EventKind.MESSAGE, union_mode="left_to_right")
    """Kind of the event; a newer server may send a kind that is not in `EventKind`."""
    seq: int
    """Number of the event within its job, from 1 without gaps. An event stream (SSE) uses this
    number as the event's id."""
    job_id: str = ""
    """Id of the job; empty from older servers."""


class MetricPoint(Response):
    """All metrics of one optimiser step."""

    id: str
    """Step number as text, also a cursor for the parameter `after`."""
    object: Literal["fine_tuning.job.metrics"] = "fine_tuning.job.metrics"
    step: int
    values: dict[str, float | None]
    """Metrics by name; null means NaN.

    Each step has `train_loss`, `train_mean_token_accuracy`, `learning_rate`, `grad_norm`, `epoch`,
    `tokens_per_second` (input tokens) and `trained_tokens`. A step has `embedding_learning_rate` if
    it differs from `learning_rate`. After an evaluation, a step also has `valid_loss`. Losses are
    in nats per token. Full tuning in bf16 adds `updates_lost_fraction`, the share of weights whose
    update was rounded away.

    About once a second, a step also has `step_seconds`, `data_wait_share` and `padding_share`. The
    values of these metrics are averages over the time since the previous values. `data_wait_share`
    is the share of time in which the trainer waits for batches; the time of evaluations and
    checkpoints does not count. `padding_share` is the share of batch positions without a token.
    About once a second, a step also has the current memory in bytes: `memory_rss`, and on a GPU
    `memory_allocated`, `memory_reserved` and `memory_pinned`.

    A reinforcement step also has `reward`, `reward_std`, `kl`, `entropy` (nats per token) and
    `clip_ratio`. With several graders, a step has `score_<grader>` for each grader. After an
    evaluation, a step has `valid_reward`. `frac_reward_zero_std` is the share of groups with equal
    rewards, among groups with rewards. `ungraded_share` is the share of completions without a
    reward. `truncated_share` is the share of completions that were cut at the length limit.
    `completion_length` (mean) and `completion_length_max` are in tokens. `rollout_gap` is the mean
    absolute difference between a token's log-prob at its generation and its log-prob in training.

    With `recipe.rollout.importance_sampling`, a step has `importance_ratio` (mean) and
    `importance_ratio_max`. `importance_masked_share` is the share of ratios above the limit of 3.
    About once a second, a reinforcement step also has `sync_share`, `generate_share`,
    `grade_share`, `log_probs_share`, `forward_share` and `backward_share`. These six metrics are
    shares of the time without evaluations and checkpoints. `idle_share` is the share of this time
    in which the trainer waits for batches or graders, writes metrics, or runs its loop.
    `generated_tokens_per_second` covers only the time of generation.
    """


class CheckpointMetrics(Response):
    """Metrics of a checkpoint, named as in OpenAI's API; null if not measured."""

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

"""Run report: time, throughput and memory of one attempt, and advice based on these values.

The trainer writes the report to report.json, the supervisor completes and sends it, and the API
returns it. Times are wall-clock seconds, memory is in bytes, and shares are between 0 and 1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field

from .base import Response
from .evaluation import Evaluation
from .health import JobHealth
from .report_example import REINFORCEMENT_EXAMPLE, REPORT_EXAMPLE
from .run import Choice


class PhaseName(StrEnum):
    """Phase of an attempt. Each moment of an attempt belongs to exactly one phase."""

    CLAIM = "claim"
    """Claiming the job from the server."""
    DOWNLOAD = "download"
    """Downloading data files, and the base model if this service trained the base model."""
    SPAWN = "spawn"
    """Starting the trainer process, up to its first line of code."""
    IMPORT = "import"
    """Importing torch and the libraries that depend on it."""
    LOAD = "load"
    """Loading the base model and attaching the adapter."""
    DATA = "data"
    """Reading and tokenising rows."""
    PACK = "pack"
    """Packing rows into sequences."""
    PLAN = "plan"
    """Choosing `"auto"` settings, including measurements."""
    SETUP = "setup"
    """Building the trainer, optimiser and data loader, and installing the kernels."""
    SELF_CHECK = "self_check"
    """Running the self-check before the first step."""
    DATA_WAIT = "data_wait"
    """Waiting for batches: collating rows and moving them to the device."""
    SYNC = "sync"
    """Reinforcement: copying the weights to the rollout engine."""
    GENERATE = "generate"
    """Reinforcement: generating completions, while graders run concurrently."""
    GRADE = "grade"
    """Reinforcement: waiting for graders after the last completion."""
    LOG_PROBS = "log_probs"
    """Reinforcement: computing the reference model's log-probs, without gradients."""
    FORWARD = "forward"
    """Forward passes of training, including the loss."""
    BACKWARD = "backward"
    """Backward passes, including recomputation."""
    OPTIMIZER = "optimizer"
    """Clipping gradients, updating weights and the learning rate, and setting gradients to zero."""
    EVALUATION = "evaluation"
    """Evaluating on the validation file."""
    CHECKPOINTING = "checkpointing"
    """Writing checkpoints during training, without their upload, which runs in the background."""
    LOGGING = "logging"
    """Reading the loss from the device and writing metrics."""
    TRAIN = "train"
    """Remaining training time, spent in the trainer's loop."""
    SAVE = "save"
    """Writing the final adapter or weights."""
    EVALUATE_RESULT = "evaluate_result"
    """Evaluating the result after training (`recipe.evaluate`)."""
    EXIT = "exit"
    """Ending the trainer process, after its last line of code."""
    UPLOAD = "upload"
    """Uploading the result and remaining checkpoints."""
    OTHER = "other"
    """Time outside all other phases."""


STARTUP = (
    *(PhaseName.CLAIM, PhaseName.DOWNLOAD, PhaseName.SPAWN, PhaseName.IMPORT, PhaseName.LOAD),
    *(PhaseName.DATA, PhaseName.PACK, PhaseName.PLAN, PhaseName.SETUP, PhaseName.SELF_CHECK),
)
"""Phases of an attempt before its first step."""
ROLLOUT = (PhaseName.SYNC, PhaseName.GENERATE, PhaseName.GRADE, PhaseName.LOG_PROBS)
"""Phases of a reinforcement step before its training pass."""
COMPUTE = (PhaseName.FORWARD, PhaseName.BACKWARD, PhaseName.OPTIMIZER)
"""Training phases in which the device computes."""
TRAINING = (
    *(PhaseName.DATA_WAIT, *ROLLOUT, *COMPUTE, PhaseName.LOGGING, PhaseName.TRAIN),
    *(PhaseName.EVALUATION, PhaseName.CHECKPOINTING),
)
"""Phases of an attempt from its first to its last step."""


class PeakMemory(Response):
    """Peak memory by kind, in bytes; null for a kind that the machine does not have."""

    allocated: int | None = None
    """GPU memory occupied by tensors (torch's `max_memory_allocated`)."""
    reserved: int | None = None
    """GPU memory held by torch's allocator, including its cache; nvidia-smi shows about the same
    value."""
    device_total: int | None = None
    """Total memory of the GPU, in bytes."""
    pinned: int | None = None
    """Page-locked host memory held by torch's allocator."""
    rss: int | None = None
    """Resident host memory of the trainer process."""


class Throughput(Response):
    """Training throughput. Evaluations and checkpoints do not count as training time."""

    seconds: float
    """Training time in seconds; all rates use this time."""
    steps_per_second: float | None = None
    """Optimiser steps per second."""
    input_tokens: int = 0
    """Number of tokens in the training batches, without padding."""
    trained_tokens: int = 0
    """Number of tokens that contribute to the loss."""
    tokens_per_second: float | None = None
    """Input tokens per second."""
    trained_tokens_per_second: float | None = None
    """Trained tokens per second."""
    slots: int = 0
    """Number of token positions in the training batches, including padding."""
    padding_share: float | None = None
    """Share of token positions that hold padding; null if rows share the tokens of a prompt."""
    micro_batches: int = 0
    """Number of micro-batches, each with one forward pass."""
    generated_tokens: int = 0
    """Number of generated tokens (reinforcement)."""
    generated_tokens_per_second: float | None = None
    """Generated tokens per second of training time; null if nothing was generated."""


RolloutEngineName = Literal["vllm", "native", "transformers"]


class Rollouts(Response):
    """Completions that a reinforcement run generated for training."""

    rounds: int
    """Number of generation rounds."""
    num_iterations: int
    """Number of optimiser steps per generation round (`recipe.grpo.num_iterations`)."""
    completions: int
    """Number of generated completions."""
    generated_tokens: int
    """Number of generated tokens, including end tokens."""
    tokens_per_second: float | None = None
    """Generated tokens per second during the phase `generate`."""
    decode_steps: int
    """Number of forward passes that sample one token for each unfinished completion."""
    graph_steps: int = 0
    """Number of decode steps that replayed a CUDA graph; 0 on a CPU."""
    mean_length: float | None = None
    """Mean length of a completion in tokens."""
    longest: int
    """Length of the longest completion in tokens."""
    truncated_share: float | None = None
    """Share of completions cut at `recipe.grpo.max_completion_length`."""
    idle_share: float | None = None
    """Share of step time in the phases `data_wait`, `grade`, `logging` and `train`: the trainer
    waits for batches or graders, writes metrics, or runs its loop."""
    ungraded_share: float | None = None
    """Share of completions that no grader could score; training excludes these completions."""
    zero_std_share: float | None = None
    """Share of groups with equal rewards, among groups with rewards. Groups with equal rewards give
    no learning signal."""
    layout: Literal["shared", "plain"]
    """Training layout: `shared` computes a group's prompt once, `plain` computes it once per
    completion."""
    token_ratio: float | None = None
    """Number of tokens that the layout `plain` would compute, divided by the number of computed
    tokens."""
    engine: RolloutEngineName | None = None
    """Engine that generated the last round (`recipe.rollout.fast_inference`); null in reports of
    earlier versions."""
    weights: Literal["merged", "in_place"]
    """Weights that generated the completions. `merged`: a copy of the weights, into which the
    adapter is merged. `in_place`: the training weights, into which the adapter is merged
    temporarily."""


class Utilization(Response):
    """Model FLOPs utilisation (MFU): the FLOPs per second that the model requires, divided by the
    device's peak. MFU does not count recomputation."""

    mfu: float | None = None
    """MFU; null if the device's peak or the model's FLOPs are unknown."""
    reason: str
    """Formula of `mfu` with its numbers, or the reason why `mfu` is null."""
    model_flops: float | None = None
    """Floating-point operations of the run so far."""
    peak_tflops: float | None = None
    """Peak of the device in dense bf16 TFLOP/s."""


class TrainingSettings(Response):
    """Settings of the attempt, with every `"auto"` replaced by the chosen value."""

    tuning: Literal["lora", "full"]
    """Trained weights: `lora` means a LoRA adapter, `full` all weights."""
    precision: str
    """Number format of weights and computation, see `recipe.precision`."""
    per_device_train_batch_size: int
    """Number of rows per forward pass."""
    gradient_accumulation_steps: int
    """Number of forward passes per optimiser step."""
    packing: bool
    """True if rows were packed into sequences before training."""
    layout: Literal["padded", "padding_free", "packed"] | None = None
    """Layout of a step's rows; null until chosen. `padded` pads rows to equal length.
    `padding_free` and `packed` concatenate rows. With `padding_free`, micro-batches have equal
    numbers of rows. With `packed`, the number of tokens of a micro-batch is limited."""
    gradient_checkpointing: bool
    """True if activations are recomputed in the backward pass."""
    logging_steps: int
    """Number of steps between two metric events."""
    eval_steps: int | None = None
    """Number of steps between two evaluations; null without a validation file."""
    save_steps: int | None = None
    """Number of steps between two checkpoints; null if only the final weights are saved."""


class LayerMemory(Response):
    """Handling of each layer's activations. The lists start at layer 0; a list is null if its
    values are unknown."""

    planned: list[Literal["keep", "recompute", "offload"]] | None = None
    """Planned handling of each layer's activations."""
    recomputes: list[int] | None = None
    """Number of recomputed forward passes of each layer."""
    offloads: list[int] | None = None
    """Number of times a layer's activations were moved to host memory."""


class BoundBy(StrEnum):
    """Bottleneck of a run: the part that takes most of its time."""

    STARTUP = "startup"
    """All phases before the first step."""
    GENERATION = "generation"
    """Generating completions, including weight sync."""
    GRADING = "grading"
    """Waiting for graders after the last completion."""
    DATA = "data"
    """Waiting for batches of data."""
    HOST = "host"
    """The GPU waits for the program on the host."""
    DEVICE_COMPUTE = "device_compute"
    """Forward, backward, optimiser and reference model computation on the device."""
    MEMORY = "memory"
    """The device computes on small batches, or recomputes activations, because its memory is full.
    """
    EVALUATION = "evaluation"
    """Evaluating on the validation file."""
    CHECKPOINTING = "checkpointing"
    """Writing and storing checkpoints and the result."""
    UNKNOWN = "unknown"
    """No step was completed, or most of the time belongs to the phase `other`."""


class Bound(Response):
    """Bottleneck of the run."""

    by: BoundBy
    """Bottleneck as a stable code for programs."""
    text: str
    """Rule that identified the bottleneck, with its numbers."""


class Saturation(Response):
    """Change of the throughput if a forward pass has more rows."""

    state: Literal["saturated", "not_saturated", "not_measured"]
    """Result of the measurement. `saturated` means that more rows would use more memory without a
    higher throughput."""
    text: str
    """Measurements that explain `state`, or the reason why nothing was measured."""
    doubling_gain: float | None = None
    """Relative gain in tokens per second with twice as many rows: 0.1 means 10 % more."""


class Advice(Response):
    """Advice: the change with the largest expected gain."""

    rule: str
    """Name of the rule that gave the advice; `none` means that no change would gain more than 3 %.
    """
    text: str
    """Suggested change, its expected gain, and the measurements that led to it."""
    gain_share: float | None = None
    """Largest share of the attempt's wall time that the change could save."""


class RunReport(Response):
    """Report of one attempt at a job. The report is complete when the attempt has ended."""

    attempt: int = Field(ge=1)
    outcome: Literal["succeeded", "failed", "cancelled", "released", "stopped"] | None = None
    """Outcome of the attempt; null while it is running, or if its worker was lost. `released` means
    that the worker shut down or paused the job; `stopped` means that `tunesmith run` was
    stopped."""
    started_at: float = Field(ge=0)
    """Start time, Unix seconds."""
    wall_seconds: float = Field(ge=0)
    """Time from the claim to the attempt's end, or until now. With `tunesmith run`, the time starts
    when its process starts."""
    queued_seconds: float | None = None
    """Time in the queue before the claim; not part of `wall_seconds`."""
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds per phase (see `PhaseName`) in run order; the sum is `wall_seconds`."""
    paused_seconds: float = 0.0
    """Time during which the trainer was suspended because the server was unreachable. This
    time also counts in the phase that was suspended."""
    steps: int = 0
    """Number of completed optimiser steps."""
    total_steps: int | None = None
    """Number of optimiser steps of the whole run; null until known."""
    settings: TrainingSettings | None = None
    """Settings of the attempt; null until chosen."""
    device: str | None = None
    """Device of the run: `cpu`, or the GPU's name."""
    host: str | None = None
    """Name of the machine that ran the trainer; null in reports of earlier releases."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Versions of the libraries that the trainer used; the keys are package names."""
    throughput: Throughput | None = None
    """Training throughput; null before the first step."""
    rollouts: Rollouts | None = None
    """Generated completions; null before the first rollout and for supervised runs."""
    peak_memory: PeakMemory = Field(default_factory=PeakMemory)
    """Peak memory by kind."""
    utilization: Utilization | None = None
    """Model FLOPs utilisation; null before the first step."""
    device_waits_share: float | None = None
    """Share of steps that ended with an idle GPU, which waited for the host; null on a CPU."""
    layers: LayerMemory = Field(default_factory=LayerMemory)
    """Planned and actual recomputation and offload of each layer."""
    choices: list[Choice] = Field(default_factory=list)
    """Settings that were `"auto"`, with the chosen value and the reason."""
    bound: Bound
    """Bottleneck of the run."""
    saturation: Saturation
    """Change of the throughput if a forward pass has more rows."""
    advice: Advice
    """Change with the largest expected gain."""
    first_step: str | None = None
    """Result of comparing the attempt's first step with plain torch; names the values that were not
    compared. Null before the first step of the attempt, or with `recipe.self_check: false`."""
    evaluation: Evaluation | None = None
    """Evaluation of the result; null before the end of the attempt, and without an evaluation."""
    no_evaluation: str | None = None
    """Reason why the result could not be evaluated. Null after an evaluation, or if no evaluation
    was requested."""


class AttemptSummary(Response):
    """Summary of an earlier attempt; `GET .../report?attempt=N` returns its whole report."""

    attempt: int
    outcome: str | None = None
    """Outcome of the attempt; see `RunReport`."""
    wall_seconds: float
    """Wall-clock seconds of the attempt; see `RunReport`."""
    steps: int
    """Number of completed optimiser steps."""


class JobReport(RunReport):
    """Answer of `GET /v1/fine_tuning/jobs/{id}/report`: the newest attempt that has a report."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [dict(REPORT_EXAMPLE), dict(REINFORCEMENT_EXAMPLE)]}
    )

    object: Literal["fine_tuning.job.report"] = "fine_tuning.job.report"
    job_id: str
    live: bool
    """True while the attempt is running and the report may still change."""
    updated_at: int
    """Time of the worker's last update, Unix seconds."""
    health: JobHealth | None = None
    """Health of the job's training, over all attempts."""
    earlier_attempts: list[AttemptSummary] = Field(default_factory=list)
    """Earlier attempts that have a report, oldest first. Do not add up the times of several
    attempts, because a later attempt may repeat steps of an earlier one."""

"""The run report: where the time of one attempt went, what it reached, what holds it back.

A trainer writes it as report.json, its supervisor completes and sends it, the API hands it out.
Times are seconds of wall clock, memory is bytes, shares lie between 0 and 1.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field

from .base import Response
from .report_example import REINFORCEMENT_EXAMPLE, REPORT_EXAMPLE
from .run import Choice


class PhaseName(StrEnum):
    """What a moment of an attempt was spent on. Each moment belongs to exactly one."""

    CLAIM = "claim"
    """Asking the server for the job."""
    DOWNLOAD = "download"
    """Fetching data files, and the base model where it was trained here."""
    SPAWN = "spawn"
    """From starting the trainer's process to its first line."""
    IMPORT = "import"
    """Importing torch and what stands on it."""
    LOAD = "load"
    """Loading the base model, attaching the adapter."""
    DATA = "data"
    """Reading rows and tokenising them."""
    PACK = "pack"
    """Filling sequences with several rows each."""
    PLAN = "plan"
    """Settling what the recipe leaves open, probes included."""
    SETUP = "setup"
    """Building the trainer, its optimiser and data loader, and putting our kernels in."""
    SELF_CHECK = "self_check"
    """Proving before the first step that the model learns what it should."""
    DATA_WAIT = "data_wait"
    """Waiting for batches: collating rows, laying them out and moving them to the device."""
    SYNC = "sync"
    """Reinforcement: bringing the weights to where completions are generated."""
    GENERATE = "generate"
    """Reinforcement: generating completions, graders running beside it."""
    GRADE = "grade"
    """Reinforcement: waiting for graders after the last completion."""
    LOG_PROBS = "log_probs"
    """Reinforcement: passes without gradient, for the reference model's log-probabilities."""
    FORWARD = "forward"
    """The forward passes of training, and the loss."""
    BACKWARD = "backward"
    """The backward passes, recomputation included."""
    OPTIMIZER = "optimizer"
    """Clipping, the optimiser's step, the schedule, zeroing gradients."""
    EVALUATION = "evaluation"
    """Measuring the validation loss."""
    CHECKPOINTING = "checkpointing"
    """Writing checkpoints while training; their upload runs beside it."""
    LOGGING = "logging"
    """Reading the loss from the device and writing metrics."""
    TRAIN = "train"
    """What is left of training: the trainer's own loop, between the parts above."""
    SAVE = "save"
    """Writing the adapter or the weights at the end."""
    EXIT = "exit"
    """From the trainer's last line to the end of its process."""
    UPLOAD = "upload"
    """Storing the result, and checkpoints that were still on their way."""
    OTHER = "other"
    """What nobody accounted for."""


STARTUP = (
    *(PhaseName.CLAIM, PhaseName.DOWNLOAD, PhaseName.SPAWN, PhaseName.IMPORT, PhaseName.LOAD),
    *(PhaseName.DATA, PhaseName.PACK, PhaseName.PLAN, PhaseName.SETUP, PhaseName.SELF_CHECK),
)
"""Before the first step."""
ROLLOUT = (PhaseName.SYNC, PhaseName.GENERATE, PhaseName.GRADE, PhaseName.LOG_PROBS)
"""What comes before the training pass of a reinforcement step."""
COMPUTE = (PhaseName.FORWARD, PhaseName.BACKWARD, PhaseName.OPTIMIZER)
"""What the device works on while training."""
TRAINING = (
    *(PhaseName.DATA_WAIT, *ROLLOUT, *COMPUTE, PhaseName.LOGGING, PhaseName.TRAIN),
    *(PhaseName.EVALUATION, PhaseName.CHECKPOINTING),
)
"""From the first step to the last."""


class PeakMemory(Response):
    """The most that was held at one moment, bytes. Null where there is no such memory."""

    allocated: int | None = None
    """In the GPU's tensors (torch's `max_memory_allocated`)."""
    reserved: int | None = None
    """Taken from the GPU by torch's allocator, caches included: near to what nvidia-smi shows."""
    device_total: int | None = None
    """What the GPU has."""
    pinned: int | None = None
    """Page-locked memory of the host, as torch's allocator holds it."""
    rss: int | None = None
    """Resident memory of the trainer's process, all on the host."""


class Throughput(Response):
    """What training reached. Evaluations and checkpoints do not count as training time."""

    seconds: float
    """Training time that the rates below are over."""
    steps_per_second: float | None = None
    """Optimiser steps."""
    input_tokens: int = 0
    """Tokens in the training batches, padding not counted."""
    trained_tokens: int = 0
    """Those of them that carried loss."""
    tokens_per_second: float | None = None
    """Input tokens per second."""
    trained_tokens_per_second: float | None = None
    """Tokens that carried loss, per second."""
    slots: int = 0
    """Places in the training batches, padding counted."""
    padding_share: float | None = None
    """Share of the slots that held no token; null where a prompt's tokens serve several rows."""
    micro_batches: int = 0
    """Forward passes of training."""
    generated_tokens: int = 0
    """Reinforcement: tokens drawn."""
    generated_tokens_per_second: float | None = None
    """Those over all of training time; null: nothing was drawn."""


class Rollouts(Response):
    """What a reinforcement run generated to train on."""

    rounds: int
    """Times that completions were generated."""
    num_iterations: int
    """Optimiser steps on each round (`recipe.grpo.num_iterations`)."""
    completions: int
    """Drawn."""
    generated_tokens: int
    """Tokens drawn, those that end a completion included."""
    tokens_per_second: float | None = None
    """Of generation alone: tokens drawn over the time in `generate`."""
    decode_steps: int
    """Forward passes that drew a token for each completion then alive."""
    graph_steps: int = 0
    """Those that a CUDA graph repeated; 0 on a CPU."""
    mean_length: float | None = None
    """Tokens of a completion."""
    longest: int
    """Tokens of the longest one."""
    truncated_share: float | None = None
    """Completions that were cut at `recipe.grpo.max_completion_length`."""
    idle_share: float | None = None
    """Of the time in steps, what went neither into generating (with bringing the weights there) nor
    into training: waiting for graders and batches, logging, the trainer's own loop."""
    ungraded_share: float | None = None
    """Completions that no grader could score: they take no part."""
    zero_std_share: float | None = None
    """Of the groups with rewards, those in which all were equal: nothing is learned from them."""
    layout: Literal["shared", "plain"]
    """In training, a group's prompt goes through the model once, or with each completion."""
    token_ratio: float | None = None
    """Tokens of a training pass if each completion came with its prompt, for each one computed."""
    weights: Literal["merged", "in_place"]
    """Completions were drawn from a merged copy of the weights, or from the training weights with
    the adapter folded in meanwhile."""


class Utilization(Response):
    """Model FLOPs utilisation (MFU): arithmetic that the model needs, over what the device could do
    in the same time. Recomputation does not count as needed."""

    mfu: float | None = None
    """Null where the device's peak or the model's arithmetic is not known."""
    reason: str
    """The formula with its figures, or why there is no number."""
    model_flops: float | None = None
    """Floating-point operations of the run so far."""
    peak_tflops: float | None = None
    """What the device can do, dense bf16 TFLOP/s."""


class TrainingSettings(Response):
    """What the attempt trained with, everything settled."""

    tuning: Literal["lora", "full"]
    """What is trained."""
    precision: str
    """Of the arithmetic."""
    per_device_train_batch_size: int
    """Rows in a forward pass."""
    gradient_accumulation_steps: int
    """Forward passes in an optimiser step."""
    packing: bool
    """Whether sequences were filled with several rows each beforehand."""
    layout: Literal["padded", "padding_free", "packed"] | None = None
    """How a step's rows are laid out: side by side, end to end by rows, end to end by tokens. Null
    while that is being measured."""
    gradient_checkpointing: bool
    """Whether activations are computed anew in the backward."""
    logging_steps: int
    """Steps between two metric events."""
    eval_steps: int | None = None
    """Steps between two evaluations; null: there is no validation file."""
    save_steps: int | None = None
    """Steps between two checkpoints; null: none before the end."""


class LayerMemory(Response):
    """What became of each layer's activations, layer 0 first. Null: nobody counts them."""

    planned: list[Literal["keep", "recompute", "offload"]] | None = None
    """What the plan says."""
    recomputes: list[int] | None = None
    """How often each layer's forward ran again for the backward."""
    offloads: list[int] | None = None
    """How often each layer's activations went to the host's memory."""


class BoundBy(StrEnum):
    """What the time of a run goes to, and what therefore bounds it."""

    STARTUP = "startup"
    """Everything before the first step."""
    GENERATION = "generation"
    """Generating completions, and bringing the weights there."""
    GRADING = "grading"
    """Waiting for graders after the last completion."""
    DATA = "data"
    """Waiting for batches."""
    HOST = "host"
    """The GPU waits for the program that feeds it."""
    DEVICE_COMPUTE = "device_compute"
    """Forward, backward and optimiser on the device, and the reference model's passes."""
    MEMORY = "memory"
    """The device computes, on small or recomputed batches because its memory is full."""
    EVALUATION = "evaluation"
    """Measuring the validation loss."""
    CHECKPOINTING = "checkpointing"
    """Writing and storing checkpoints and the result."""
    UNKNOWN = "unknown"
    """No step has been done, or most of the time is not accounted for."""


class Bound(Response):
    """What bounds the run."""

    by: BoundBy
    """One word, for programs."""
    text: str
    """The rule that decided it, with its figures."""


class Saturation(Response):
    """Whether more rows in a forward pass would raise tokens per second."""

    state: Literal["saturated", "not_saturated", "not_measured"]
    """`saturated`: more rows only add memory."""
    text: str
    """From which figures, or why it was not measured."""
    doubling_gain: float | None = None
    """Tokens per second with twice the rows, relative: 0.1 is 10 % more."""


class Advice(Response):
    """The one change that would help most."""

    rule: str
    """Name of the rule that found it; `none`: nothing would help by more than 3 %."""
    text: str
    """What to change, what it gains, and from which figures."""
    gain_share: float | None = None
    """Predicted share of the attempt's wall time that it saves, at most."""


class RunReport(Response):
    """One attempt at a job, so far or as a whole."""

    attempt: int = Field(ge=1)
    outcome: Literal["succeeded", "failed", "cancelled", "released", "stopped"] | None = None
    """How the attempt ended. Null: it is going on, or its worker was lost. `released`: its worker
    was told to go; `stopped`: the same of a run by hand."""
    started_at: float = Field(ge=0)
    """Unix seconds."""
    wall_seconds: float = Field(ge=0)
    """From the claim to the end, or to now; a run by hand begins with its process."""
    queued_seconds: float | None = None
    """How long the job had waited before; not part of `wall_seconds`."""
    phases: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase (see `PhaseName`), in the order of the run; they sum to `wall_seconds`."""
    paused_seconds: float = 0.0
    """How long the trainer stood still because the server could not be reached; this time is part
    of whatever phase it was in."""
    steps: int = 0
    """Optimiser steps done."""
    total_steps: int | None = None
    """Optimiser steps of the whole run, once they are known."""
    settings: TrainingSettings | None = None
    """What it trains with; null before that is settled."""
    device: str | None = None
    """`cpu`, or the GPU's name."""
    throughput: Throughput | None = None
    """Null before the first step."""
    rollouts: Rollouts | None = None
    """Of a reinforcement run, once it has generated; null for others."""
    peak_memory: PeakMemory = Field(default_factory=PeakMemory)
    """The most that was held, by kind."""
    utilization: Utilization | None = None
    """Null before the first step."""
    device_waits_share: float | None = None
    """Share of the steps at whose end the GPU had nothing left to do: it waits for the host. Null
    on a CPU."""
    layers: LayerMemory = Field(default_factory=LayerMemory)
    """Recomputation and offload, against the plan."""
    choices: list[Choice] = Field(default_factory=list)
    """What was `"auto"`: value and reason."""
    bound: Bound
    """What bounds the run."""
    saturation: Saturation
    """Whether more rows at once would help."""
    advice: Advice
    """The one change that would help most."""


class AttemptSummary(Response):
    """An earlier attempt, in short; `GET .../report?attempt=N` gives the whole report."""

    attempt: int
    outcome: str | None = None
    """As in `RunReport`."""
    wall_seconds: float
    """As in `RunReport`."""
    steps: int
    """Optimiser steps done."""


class JobReport(RunReport):
    """What `GET /v1/fine_tuning/jobs/{id}/report` answers: the newest attempt that has a report."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [dict(REPORT_EXAMPLE), dict(REINFORCEMENT_EXAMPLE)]}
    )

    object: Literal["fine_tuning.job.report"] = "fine_tuning.job.report"
    job_id: str
    live: bool
    """Whether the attempt is still going on: the next answer may say more."""
    updated_at: int
    """When its worker last sent it, unix seconds."""
    earlier_attempts: list[AttemptSummary] = Field(default_factory=list)
    """Those before this one that have a report, oldest first. Times are not summed: each attempt
    did its steps anew."""

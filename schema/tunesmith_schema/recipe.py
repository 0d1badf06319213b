"""Training settings (`recipe`), named as in PEFT and TRL. With `"auto"`, the engine chooses the
value and reports the reason."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .base import Request, Text
from .bounds import MAX_STEP, JsonBound
from .early_stopping import EarlyStoppingRecipe
from .grpo import GRPORecipe, RolloutRecipe
from .renames import check_current

Auto = Literal["auto"]
PatchName = Literal["attention_block", "mlp_block", "attention", "loss"]
Precision = Literal["fp32", "bf16", "bf16_split_master", "bf16_sr8"]
PatchNames = Annotated[list[PatchName], Field(min_length=1, max_length=4)]
NewToken = Annotated[Text, Field(min_length=1, max_length=256)]
MAX_LIST_BYTES = 64 * 1024
"""Maximum size in bytes of a list of names or tokens, as JSON."""
ModuleNames = Annotated[
    list[Annotated[Text, Field(max_length=256)]],
    Field(max_length=1024),
    JsonBound(MAX_LIST_BYTES),
]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a Llama-like block. By default, LoRA adapts these layers in a Llama-like
model."""


class LoraRecipe(Request):
    """Low-rank adaptation (LoRA) of a weight, `W + (lora_alpha / r) B A`:
    https://arxiv.org/abs/2106.09685."""

    r: int = Field(default=32, ge=1, le=512)
    """Rank of the LoRA matrices A and B."""
    lora_alpha: float = Field(default=16, gt=0, le=4096)
    """LoRA updates are scaled by lora_alpha / r, or by lora_alpha / sqrt(r) with `use_rslora`."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability for the adapter's input during training."""
    target_modules: Auto | Literal["all-linear"] | ModuleNames = "auto"
    """Names of the layers to adapt. `"auto"` means all linear layers in the decoder layers, except
    the routers of mixture-of-experts layers; `"all-linear"` means all linear layers. If the model
    stores the experts of a layer as one tensor, the experts get no adapter. If the list names the
    embedding or the head, the whole matrix is trained: see `allow_full_embeddings`."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases to train: none, all, or only the biases of adapted layers (`"lora_only"`)."""
    use_rslora: bool = False
    """Scale LoRA updates by lora_alpha / sqrt(r) (rank-stabilised LoRA):
    https://arxiv.org/abs/2312.03732."""

    @model_validator(mode="after")
    def _some_target(self) -> Self:
        if self.target_modules == []:
            raise ValueError("target_modules must name at least one layer, or be 'auto'")
        return self


class Recipe(Request):
    """Training settings of a job; every field has a default."""

    tuning: Literal["lora", "full"] = "lora"
    """Train a LoRA adapter (`"lora"`) or all weights (`"full"`)."""
    lora: LoraRecipe | None = None
    """LoRA settings; only with `tuning: "lora"`."""
    from_scratch: bool = False
    """Start from random weights instead of the base model's weights; only with `tuning: "full"`."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak learning rate. `"auto"` is 2e-4 for LoRA, 2e-5 for full tuning and 1e-3 from scratch;
    with reinforcement 1e-5 for LoRA and 1e-6 for full tuning."""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] | Auto = (
        "auto"
    )
    """Learning rate schedule; `"auto"` is linear decay to zero."""
    warmup_steps: Annotated[int, Field(ge=0, le=MAX_STEP)] | Auto = "auto"
    """Number of linear warm-up steps; `"auto"` is 3 % of the run's steps."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    """Decoupled weight decay (AdamW)."""
    max_grad_norm: float = Field(default=1.0, ge=0.0, le=1e6, allow_inf_nan=False)
    """Clip gradients to this L2 norm; 0 disables clipping."""
    num_train_epochs: Annotated[float, Field(gt=0, le=1000)] | Auto = "auto"
    """Number of passes over the data; `"auto"` is 3 for up to 10,000 rows and 1 for more rows."""
    max_steps: Annotated[int, Field(ge=1, le=MAX_STEP)] | Auto = "auto"
    """Number of optimiser steps; overrides `num_train_epochs`."""
    max_seconds: Annotated[float, Field(gt=0, le=31_536_000)] | None = None
    """Limit of the training time of all attempts in seconds, without loading and waiting. After the
    first step beyond the limit, the run evaluates, keeps the weights and succeeds. The learning
    rate schedule still spans all planned steps."""
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Number of rows per forward pass. With `packing`, a row is a packed sequence; with
    reinforcement, a row is a completion. `"auto"` is at most 8; with reinforcement, `"auto"` is as
    many completions of a step as fit into memory."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Number of forward passes per optimiser step. With `"auto"`, a step has 16 rows, or a
    sixteenth of the rows of a small data set. With reinforcement, `grpo` sets the number of
    completions per step."""
    max_seq_length: Annotated[int, Field(ge=8, le=1_048_576)] | Auto = "auto"
    """Maximum number of tokens in a row. With reinforcement, a row is a prompt and its completion.
    `"auto"` is the model's context length, but at most 2,048 in supervised training."""
    overlong: Literal["drop", "truncate", "error"] = "drop"
    """Handling of rows longer than `max_seq_length`. The job reports how many rows were dropped or
    truncated, and how many answers were cut. Reinforcement prompts cannot be truncated."""
    packing: bool | Auto = "auto"
    """Pack several rows into one sequence, with no attention across rows; if the model cannot keep
    rows apart, rows are padded and a warning gives the reason. In runs of at least 40 steps,
    `"auto"` chooses the layout that is expected to be fastest; shorter runs are not packed."""
    patches: (
        Literal["auto", "off"] | Annotated[list[PatchName], Field(min_length=1, max_length=4)]
    ) = "auto"
    """Tunesmith kernels that replace modules of the model. `"auto"` uses every kernel that supports
    the model. A list uses only the named kernels; `"attention_block"` or `"mlp_block"` also turns
    `"attention"` on. `"off"` uses the stock trainer. Reinforcement requires the kernel `"loss"`."""
    gradient_checkpointing: bool | Literal["offload"] | Auto = "auto"
    """Recompute activations in the backward pass to save memory. `true` recomputes all layers,
    `false` recomputes none, and `"auto"` recomputes as few layers as memory requires. `"offload"`
    recomputes all layers and, on a GPU, moves their inputs to host memory."""
    precision: Precision | Auto = "auto"
    """Number format of weights and computation. With LoRA, `"fp32"` or `"bf16"` applies to the
    frozen base model; the adapter is always fp32. In full tuning, a parameter and its AdamW state
    need this many bytes: 12 with `"fp32"`, 12 with `"bf16_split_master"` (bf16 weights plus the low
    16 bits of their fp32 masters), 6 with `"bf16"` (rounds small updates away), 4 with `"bf16_sr8"`
    (stochastic rounding and 8-bit moments). On a GPU with bf16, `"auto"` is `"bf16"` for LoRA and
    `"bf16_split_master"` for full tuning; elsewhere, `"auto"` is `"fp32"`."""
    quantization: Literal["none", "nf4", "int8"] = "none"
    """Quantise the frozen base model of a LoRA run with bitsandbytes: 4-bit NF4 with double
    quantisation, or 8-bit. Quantisation saves memory, makes training slower, and changes the base
    model slightly. `"int8"` is not available with reinforcement."""
    add_tokens: Annotated[list[NewToken], JsonBound(MAX_LIST_BYTES)] = Field(
        default=[], max_length=1024
    )
    """Tokens to add to the tokenizer, which is saved with the result. The original tokenizer splits
    the text of a new token into tokens. The embedding of the new token starts as the mean of the
    embeddings of these tokens."""
    embedding_learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak learning rate of the embedding, the head and the added tokens' vectors; `"auto"` is a
    tenth of `learning_rate`. With `tuning: "full"`, all weights use `learning_rate`."""
    allow_full_embeddings: bool = False
    """Allow the embedding or the head in `lora.target_modules`. The adapter then contains whole
    matrices and is large. Without this setting, a job with the embedding or the head in
    `lora.target_modules` fails with an error that states the size of the matrices."""
    adapter_dtype: Literal["bf16", "fp32"] = "bf16"
    """Number format of the saved adapter; training uses fp32. Full tuning saves the weights in the
    number format set by `precision`."""
    logging_steps: int = Field(default=1, ge=1, le=MAX_STEP)
    """Number of steps between two metric events."""
    eval_steps: Annotated[int, Field(ge=1, le=MAX_STEP)] | Auto = "auto"
    """Number of steps between two evaluations of the validation file; `"auto"` gives ten
    evaluations per run."""
    save_steps: Annotated[int, Field(ge=1, le=MAX_STEP)] | Auto = "auto"
    """Number of steps between two checkpoints. For LoRA, `"auto"` saves one checkpoint per epoch,
    at most ten per run. For full tuning, `"auto"` saves no checkpoints. If `save_steps` is a
    number, it also sets the interval of the resume points."""
    save_total_limit: Annotated[int, Field(ge=1, le=MAX_STEP)] | None = None
    """Number of newest checkpoints to keep; None keeps all. The checkpoint with the best
    `valid_loss` (reinforcement: `valid_reward`) is always kept as well."""
    keep_every: Annotated[int, Field(ge=1, le=MAX_STEP)] | None = None
    """Keep the checkpoint and resume point of each step divisible by this number, even after the
    job has succeeded. A fork can start from these resume points."""
    early_stopping: EarlyStoppingRecipe | None = None
    """Stop the training when the evaluations no longer improve. The learning rate schedule still
    spans all planned steps. Requires a validation file."""
    keep: Literal["last", "best"] = "last"
    """Weights to return: from the last step, or from the evaluation with the best
    `early_stopping.metric` (default `valid_loss`, or `valid_reward` with reinforcement). `"best"`
    requires a validation file and disk space on the worker for two copies of the weights."""
    validation_split: float = Field(default=0.0, ge=0.0, le=0.5)
    """Share of the training rows that are used for validation instead of training; cannot be set
    together with a validation file. The job's seed determines the rows."""
    evaluate: bool = True
    """At the end of the job, evaluate the base model and the tuned model on the validation rows, or
    on a sample of training rows if there are none. The evaluation takes about 6 % of the job's
    time, but at least 2 s; see docs/reference/report.md."""
    assistant_only_loss: bool | Auto = "auto"
    """Compute the loss only on assistant turns and completions. `"auto"` means true. In `text`
    rows, the loss always includes all tokens."""
    grpo: GRPORecipe | None = None
    """Group size, sampling and loss settings of reinforcement tuning; only with `method.type:
    "reinforcement"`."""
    rollout: RolloutRecipe | None = None
    """Settings for generating completions; only with `method.type: "reinforcement"`."""

    self_check: bool = True
    """Verify before the first step, and again at steps 1, 10 and 50, that training computes correct
    results (docs/explanation/self-check.md). If the self-check fails, the job fails and reports the
    cause."""

    @field_validator("precision", mode="before")
    @classmethod
    def _no_fp16(cls, value: object) -> object:
        check_current("precision", value)
        if value == "fp16":
            raise ValueError(
                "fp16 is not available, because its gradients overflow: use 'bf16' (LoRA) or "
                "'bf16_split_master' (full tuning), or 'fp32' if the hardware has no bf16"
            )
        return value

    @field_validator("patches", mode="before")
    @classmethod
    def _name_the_nearest_patch(cls, value: Any) -> Any:  # Any: whatever JSON the caller sent
        known = get_args(PatchName)
        if value in known:
            raise PydanticCustomError(
                "patches_are_a_list", "must be a list: ['{name}']", {"name": value}
            )
        for name in value if isinstance(value, list) else [value]:
            if not isinstance(name, str) or name in (*known, "auto", "off"):
                continue
            near = get_close_matches(name[:80], (*known, "auto", "off"), n=1)
            advice = (
                f"did you mean '{near[0]}'?"
                if near
                else f"use 'auto', 'off' or a list of {', '.join(known)}"
            )
            raise PydanticCustomError(
                "unknown_patch",
                "unknown patch '{name}': {advice}",
                {"name": name[:80].encode(errors="replace").decode(), "advice": advice},
            )
        return value

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.tuning == "lora" and self.precision in ("bf16_split_master", "bf16_sr8"):
            raise ValueError(
                f"precision={self.precision!r} is only for tuning='full': a LoRA adapter is fp32 "
                "and its base model is frozen. Use precision='bf16'"
            )
        if self.tuning == "full" and self.quantization != "none":
            raise ValueError(
                f"quantization={self.quantization!r} is only for tuning='lora': quantised weights "
                "cannot be trained. Full tuning needs the least memory with precision='bf16_sr8'"
            )
        if self.tuning == "full" and self.lora is not None:
            raise ValueError("lora is only for tuning='lora': remove it, or set tuning='lora'")
        if self.from_scratch and self.tuning != "full":
            raise ValueError("from_scratch trains all weights: set tuning='full'")
        blank = [token for token in self.add_tokens if not token.strip()]
        if blank:
            raise ValueError(f"add_tokens: {blank[0]!r} is only white space")
        repeated = [token for token, count in Counter(self.add_tokens).items() if count > 1]
        if repeated:
            raise ValueError(f"add_tokens contains {repeated[0]!r} more than once")
        return self

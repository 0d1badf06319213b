"""`recipe`: the training settings, with PEFT's and TRL's names. `"auto"` lets the engine choose and
report the reason."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from .base import Request, Text
from .early_stopping import EarlyStoppingRecipe
from .grpo import GRPORecipe, RolloutRecipe
from .renames import check_current

Auto = Literal["auto"]
PatchName = Literal["attention_block", "mlp_block", "attention", "loss"]
Precision = Literal["fp32", "bf16", "bf16_split_master", "bf16_sr8"]
NewToken = Annotated[Text, Field(min_length=1, max_length=256)]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers that LoRA adapts by default."""


class LoraRecipe(Request):
    """Low-rank adaptation, W + (lora_alpha / r) B A: https://arxiv.org/abs/2106.09685."""

    r: int = Field(default=32, ge=1, le=512)
    """Rank of A and B."""
    lora_alpha: float = Field(default=16, gt=0, le=4096)
    """Numerator of the update's scale, lora_alpha / r (lora_alpha / sqrt(r) with `use_rslora`)."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Dropout probability of the adapter's input during training."""
    target_modules: Auto | Literal["all-linear"] | list[Text] = "auto"
    """Names of the layers to adapt. `"auto"`: the seven projections of a Llama-like block.
    `"all-linear"`: all linear layers. The embedding and the head, if named, are trained as whole
    matrices: see `allow_full_embeddings`."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases to train: none, all, or those of the adapted layers."""
    use_rslora: bool = False
    """Rank-stabilised scale, lora_alpha / sqrt(r): https://arxiv.org/abs/2312.03732."""

    @model_validator(mode="after")
    def _some_target(self) -> Self:
        if self.target_modules == []:
            raise ValueError("target_modules must name at least one layer, or be 'auto'")
        return self


class Recipe(Request):
    """Training settings of a job. Every field has a default."""

    tuning: Literal["lora", "full"] = "lora"
    """Train a LoRA adapter (`"lora"`) or all weights (`"full"`)."""
    lora: LoraRecipe | None = None
    """LoRA settings; only with `tuning: "lora"`."""
    from_scratch: bool = False
    """Start from random weights instead of the base model's; only with `tuning: "full"`."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak learning rate. `"auto"`: 2e-4 for LoRA, 2e-5 for full tuning, 1e-3 from scratch; with
    reinforcement 1e-5 for LoRA, 1e-6 for full tuning."""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] | Auto = (
        "auto"
    )
    """Learning rate schedule. `"auto"`: linear decay to zero."""
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = "auto"
    """Number of linear warm-up steps. `"auto"`: 3 % of the run."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    """Decoupled weight decay (AdamW)."""
    max_grad_norm: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """Clip gradients to this L2 norm. 0: no clipping."""
    num_train_epochs: Annotated[float, Field(gt=0, le=1000)] | Auto = "auto"
    """Number of passes over the data. `"auto"`: 3 up to 10,000 rows, otherwise 1."""
    max_steps: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Number of optimiser steps; overrides `num_train_epochs`."""
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Number of rows per forward pass (packed sequences with `packing`, completions with
    reinforcement). `"auto"`: at most 8; with reinforcement all completions of a step, split if they
    do not fit into memory."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Number of forward passes per optimiser step. `"auto"`: enough for 16 rows per step, or a
    sixteenth of the rows of a small data set; with reinforcement `grpo` sets the size of a step."""
    max_seq_length: Annotated[int, Field(ge=8, le=1_048_576)] | Auto = "auto"
    """Largest number of tokens of a row; with reinforcement of a prompt and its completion
    together. `"auto"`: the model's context, in supervised training at most 2,048."""
    overlong: Literal["drop", "truncate", "error"] = "drop"
    """Handling of rows longer than `max_seq_length`: `"drop"`, `"truncate"` or `"error"`. The
    number of dropped and truncated rows is reported. Prompts of reinforcement cannot be truncated.
    """
    packing: bool | Auto = "auto"
    """Pack several rows into a sequence, with no attention across rows. `false`: one row after
    another, without padding if our attention kernel supports the model. `"auto"`: the fastest
    layout of the step's rows, measured during the first steps of runs of at least 40 steps."""
    patches: Literal["auto", "off"] | Annotated[list[PatchName], Field(min_length=1)] = "auto"
    """Kernels of Tunesmith to use in place of the model's modules. `"auto"`: all that support the
    model; unsupported modules are left unchanged and listed. A list: only these
    (`"attention_block"` and `"mlp_block"` include `"attention"`). `"off"`: the stock trainer.
    Reinforcement requires `"loss"`."""
    gradient_checkpointing: bool | Literal["offload"] | Auto = "auto"
    """Recompute activations in the backward pass to save memory. `"auto"`: in as few layers as
    necessary; `true`: in all layers; `"offload"`: in all layers, and on a GPU their inputs are
    moved to host memory; `false`: in none."""
    precision: Precision | Auto = "auto"
    """Number format of weights and computation. LoRA: `"fp32"` or `"bf16"` for the frozen base
    model; the adapter is always fp32. Full tuning, with the bytes per parameter of weights and
    AdamW state: `"fp32"` (12); `"bf16_split_master"` (12): bf16 weights plus the low 16 bits of
    their fp32 masters, which follows the fp32 trajectory with bf16 gradients; `"bf16_sr8"` (4):
    bf16 weights with stochastic rounding and 8-bit moments; `"bf16"` (6): plain bf16, which rounds
    small updates away and warns. `"auto"`: on a GPU with bf16, `"bf16"` for LoRA and
    `"bf16_split_master"` for full tuning; otherwise `"fp32"`."""
    quantization: Literal["none", "nf4", "int8"] = "none"
    """Quantise the frozen base model of a LoRA run with bitsandbytes: 4-bit NF4 with double
    quantisation, or 8-bit. Needs less memory, is slower, and changes the model slightly. `"int8"`
    is not available with reinforcement."""
    add_tokens: list[NewToken] = Field(default=[], max_length=1024)
    """Tokens to add to the tokenizer, which is saved with the result. Their text is then always one
    token. The embedding of a new token starts as the mean of the embeddings of the tokens that its
    text was split into before."""
    embedding_learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak learning rate of the embedding, the head and the rows of added tokens. `"auto"`: a tenth
    of `learning_rate`; with `tuning: "full"` all weights use `learning_rate`."""
    allow_full_embeddings: bool = False
    """Allow the embedding or the head in `lora.target_modules`. They make up most of the
    size of such an adapter: without this setting the job fails, and the error has their size."""
    adapter_dtype: Literal["bf16", "fp32"] = "bf16"
    """Number format of the saved adapter; training uses fp32. Full tuning saves the weights in the
    format that `precision` gives them."""
    logging_steps: int = Field(default=1, ge=1)
    """Number of steps between two metric events."""
    eval_steps: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Number of steps between two evaluations of the validation file. `"auto"`: ten evaluations per
    run."""
    save_steps: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Number of steps between two checkpoints. `"auto"`: one checkpoint per epoch for LoRA, at most
    ten per run; none for full tuning. A number also sets the steps of the resume points."""
    save_total_limit: Annotated[int, Field(ge=1)] | None = None
    """Number of newest checkpoints to keep. The one with the lowest `valid_loss` (reinforcement:
    the highest `valid_reward`) is always kept as well. None: keep all."""
    keep_every: Annotated[int, Field(ge=1)] | None = None
    """Keep the checkpoints and resume points of every step divisible by this, regardless of
    `save_total_limit` and after the job has succeeded. A fork can start from them. Other resume
    points: only the newest two are kept, until the job succeeds."""
    early_stopping: EarlyStoppingRecipe | None = None
    """Stop the training before its last step when the evaluations no longer improve. The learning
    rate schedule remains that of the whole run. Requires a validation file."""
    keep: Literal["last", "best"] = "last"
    """Weights of the result: those of the last step, or those of the evaluation with the best
    `early_stopping.metric` (default: `valid_loss`, with reinforcement `valid_reward`; the earliest
    if several are equal). `"best"` requires a validation file and disk space on the worker for two
    copies of the weights."""
    assistant_only_loss: bool | Auto = "auto"
    """Train only on assistant turns and completions. `"auto"`: true, except for `text` rows, which
    are always trained whole."""
    grpo: GRPORecipe | None = None
    """Groups, sampling and loss of reinforcement tuning; only with `method.type: "reinforcement"`.
    """
    rollout: RolloutRecipe | None = None
    """Generation of completions; only with `method.type: "reinforcement"`."""

    self_check: bool = True
    """Verify before the first step that the run trains what it should
    (docs/explanation/self-check.md). If not, the job fails with the cause. The check is repeated at
    steps 1, 10 and 50."""

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
            near = get_close_matches(name, (*known, "auto", "off"), n=1)
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
                "cannot be trained. The full tuning with the least memory is precision='bf16_sr8'"
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

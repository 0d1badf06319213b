"""`recipe`: how to train. PEFT and TRL spelling; `"auto"` lets the engine choose and say why."""

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
"""The linear layers that LoRA adapts unless told otherwise."""


class LoraRecipe(Request):
    """Low-rank adaptation, W + (lora_alpha / r) B A: https://arxiv.org/abs/2106.09685."""

    r: int = Field(default=32, ge=1, le=512)
    """Rank of A and B."""
    lora_alpha: float = Field(default=16, gt=0, le=4096)
    """The update is multiplied by lora_alpha / r (or / sqrt(r), see `use_rslora`)."""
    lora_dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of the adapter's input set to zero while training."""
    target_modules: Auto | Literal["all-linear"] | list[Text] = "auto"
    """Names of the layers to adapt. `"auto"`: the seven projections of a Llama-shaped block. The
    embedding and the head, if named, train as whole matrices: see `allow_full_embeddings`."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Which biases train along."""
    use_rslora: bool = False
    """Rank-stabilised scale, lora_alpha / sqrt(r): https://arxiv.org/abs/2312.03732."""

    @model_validator(mode="after")
    def _some_target(self) -> Self:
        if self.target_modules == []:
            raise ValueError("target_modules must name at least one layer, or be 'auto'")
        return self


class Recipe(Request):
    """How to train one job. Everything has a default."""

    tuning: Literal["lora", "full"] = "lora"
    """Train a LoRA adapter, or all weights."""
    lora: LoraRecipe | None = None
    """LoRA's shape; only with `tuning: "lora"`."""
    from_scratch: bool = False
    """Ignore the base model's weights and start from random ones; only with `tuning: "full"`."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak rate. `"auto"`: 2e-4 for LoRA, 2e-5 for full, 1e-3 from scratch; reinforcement: 1e-5
    for LoRA, 1e-6 for full."""
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] | Auto = (
        "auto"
    )
    """Shape of the rate over the run. `"auto"`: linear decay to zero."""
    warmup_steps: Annotated[int, Field(ge=0)] | Auto = "auto"
    """Steps of linear warm-up. `"auto"`: 3 % of the run."""
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    """Decoupled weight decay (AdamW)."""
    max_grad_norm: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """Gradients are clipped to this L2 norm; 0 means no clipping."""
    num_train_epochs: Annotated[float, Field(gt=0, le=1000)] | Auto = "auto"
    """Passes over the data. `"auto"`: 3 up to 10,000 rows, else 1."""
    max_steps: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Optimiser steps; overrides `num_train_epochs`."""
    per_device_train_batch_size: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Rows in one forward pass (packs, when `packing`; completions, in reinforcement). `"auto"`: at
    most 8; reinforcement: a step's completions, in as many passes as their memory asks for."""
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] | Auto = "auto"
    """Forward passes in one optimiser step. `"auto"`: what makes 16 rows a step, fewer for small
    data (a sixteenth of the rows); reinforcement: as `grpo` says how large a step is."""
    max_seq_length: Annotated[int, Field(ge=8, le=1_048_576)] | Auto = "auto"
    """Tokens a row may have. `"auto"`: the model's context, at most 2,048. Reinforcement: a prompt
    and its completion together; `"auto"`: the model's context."""
    overlong: Literal["drop", "truncate", "error"] = "drop"
    """What happens to longer rows; dropped and truncated ones are counted and reported. A prompt of
    reinforcement is never cut."""
    packing: bool | Auto = "auto"
    """Fill sequences with several rows that do not see one another. `false`: rows as they come,
    end to end where our attention runs. `"auto"`: the step's rows are laid out whichever way is
    fastest, measured over the first steps of a run of 40 and more."""
    patches: Literal["auto", "off"] | Annotated[list[PatchName], Field(min_length=1)] = "auto"
    """Our kernels in place of the model's own modules. `"auto"`: all that the model allows, the
    rest stays stock and is named; a list: these alone (a half block brings our attention along);
    `"off"`: the stock trainer. Reinforcement needs `"loss"`."""
    gradient_checkpointing: bool | Literal["offload"] | Auto = "auto"
    """Recompute activations in backward to save memory. `"auto"`: as few layers as fit; `true`: all
    of them; `"offload"`: all, and on a GPU their inputs wait in the host's memory; `false`: none.
    """
    precision: Precision | Auto = "auto"
    """Number format of weights and computation. LoRA: `"fp32"` or `"bf16"` for the frozen base
    model; the adapter is always fp32. Full tuning, with the bytes per parameter of weights and
    AdamW state: `"fp32"` (12); `"bf16_split_master"` (12): bf16 weights plus the low 16 bits of
    their fp32 masters, which follows the fp32 trajectory with bf16 gradients; `"bf16_sr8"` (4):
    bf16 weights with stochastic rounding and 8-bit moments; `"bf16"` (6): plain bf16, which rounds
    small updates away and warns. `"auto"`: on a GPU with bf16, `"bf16"` for LoRA and
    `"bf16_split_master"` for full tuning; otherwise `"fp32"`."""
    quantization: Literal["none", "nf4", "int8"] = "none"
    """Keep the frozen base model of a LoRA in 4 bits (NF4, its scales quantised as well) or 8, by
    bitsandbytes: less memory, slower, a slightly different model. Reinforcement: not in 8."""
    add_tokens: list[NewToken] = Field(default=[], max_length=1024)
    """Tokens to add to the tokenizer, which is saved with the result; their text is then one token
    wherever it stands. Each gets a row that starts from the mean of the pieces it was cut into."""
    embedding_learning_rate: Annotated[float, Field(gt=0, le=1)] | Auto = "auto"
    """Peak rate of the embedding, the head and token rows. `"auto"`: a tenth of `learning_rate`;
    with `tuning: "full"` all weights share `learning_rate`."""
    allow_full_embeddings: bool = False
    """Let `lora.target_modules` name the embedding or the head. They would be most of an adapter's
    bytes: without this the job is refused, and told how many."""
    adapter_dtype: Literal["bf16", "fp32"] = "bf16"
    """In what an adapter is saved; it trains in fp32. Full tuning saves its weights as `precision`
    keeps them."""
    logging_steps: int = Field(default=1, ge=1)
    """Steps between two metric events."""
    eval_steps: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Steps between two evaluations of the validation file. `"auto"`: ten in a run."""
    save_steps: Annotated[int, Field(ge=1)] | Auto = "auto"
    """Steps between two checkpoints. `"auto"`: one an epoch for LoRA, at most ten
    in a run; none for full tuning. A number also names the steps of resume points."""
    save_total_limit: Annotated[int, Field(ge=1)] | None = None
    """Checkpoints kept: the last so many, and always the one with the lowest `valid_loss`
    (reinforcement: the highest `valid_reward`). None: all of them."""
    keep_every: Annotated[int, Field(ge=1)] | None = None
    """Checkpoints of every so many steps stay, whatever `save_total_limit` says, and so do resume
    points, beyond the newest two and after success: a fork can start from them."""
    early_stopping: EarlyStoppingRecipe | None = None
    """End the training before its last step, once the evaluations gain nothing any more. The
    learning rate's schedule stays that of the whole run. Needs a validation file."""
    keep: Literal["last", "best"] = "last"
    """Which weights are the result: the last, or those of the evaluation with the best
    `early_stopping.metric` (`valid_loss` or `valid_reward` without it; the earlier of equals),
    which needs a validation file, and room for them twice on the worker's disk."""
    assistant_only_loss: bool | Auto = "auto"
    """Train on assistant turns and completions only. `"auto"`: yes; `text` rows always whole."""
    grpo: GRPORecipe | None = None
    """Groups, sampling and loss of reinforcement tuning; only with that method."""
    rollout: RolloutRecipe | None = None
    """How its completions come about; only with that method."""

    self_check: bool = True
    """Prove before the first step that the run learns what it should
    (docs/explanation/self-check.md), and refuse to start, naming the cause, where it would not;
    look again at steps 1, 10 and 50."""

    @field_validator("precision", mode="before")
    @classmethod
    def _no_fp16(cls, value: object) -> object:
        check_current("precision", value)
        if value == "fp16":
            raise ValueError(
                "fp16 is not offered, as its gradients overflow: use 'bf16' (LoRA) or "
                "'bf16_split_master' (full tuning), or 'fp32' where the hardware has no bf16"
            )
        return value

    @field_validator("patches", mode="before")
    @classmethod
    def _name_the_nearest_patch(cls, value: Any) -> Any:  # Any: whatever JSON the caller sent
        known = get_args(PatchName)
        if value in known:
            raise PydanticCustomError(
                "patches_are_a_list", "names stand in a list: ['{name}']", {"name": value}
            )
        for name in value if isinstance(value, list) else [value]:
            if not isinstance(name, str) or name in (*known, "auto", "off"):
                continue
            near = get_close_matches(name, (*known, "auto", "off"), n=1)
            advice = (
                f"did you mean '{near[0]}'?"
                if near
                else f"it is 'auto', 'off' or a list of {', '.join(known)}"
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
                f"precision={self.precision!r} is for tuning='full': LoRA's adapter is in fp32 and "
                "its base model frozen, so use precision='bf16'"
            )
        if self.tuning == "full" and self.quantization != "none":
            raise ValueError(
                f"quantization={self.quantization!r} is for tuning='lora': quantised weights "
                "cannot be trained; precision='bf16_sr8' is full tuning in the least memory"
            )
        if self.tuning == "full" and self.lora is not None:
            raise ValueError("lora is for tuning='lora': remove it, or set tuning='lora'")
        if self.from_scratch and self.tuning != "full":
            raise ValueError("from_scratch trains all weights: set tuning='full'")
        blank = [token for token in self.add_tokens if not token.strip()]
        if blank:
            raise ValueError(f"add_tokens: {blank[0]!r} is only white space")
        twice = [token for token, count in Counter(self.add_tokens).items() if count > 1]
        if twice:
            raise ValueError(f"add_tokens names {twice[0]!r} more than once")
        return self

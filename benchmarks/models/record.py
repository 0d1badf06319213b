"""Train every small model by every method, and record the outcomes."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

from .configs import small_config
from .needs import needs
from .train import Trained, build, train_ours, train_stock

Untyped = Any  # Any: transformers is not typed

METHODS = ("lora", "full", "grpo")
LIMIT = 1e-5
"""Largest allowed relative difference between our loss and stock TRL's loss in a step, in fp32."""
MOST_PARAMETERS = 4_000_000
State = Literal["fast", "stock", "refused", "failed", "different"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of training a small model by one method."""

    state: State
    """`fast`: our kernels compute the layers. `stock`: the layers of transformers are used.
    `refused`: the run ended before the first step, with an error that names the cause. `failed`:
    any other error ended the run. `different`: the losses differ from stock TRL's losses."""
    detail: str
    """Summary of the patched modules, or the error's message."""
    difference: float | None = None
    """Largest relative difference between a step's loss and stock TRL's loss; None if the losses
    were not compared."""
    own_logits: bool = False
    """True if the loss uses the logits of the model's own forward pass, because TRL's fused head
    does not compute the same logits."""
    stock_fails: str | None = None
    """Error of stock TRL on the same model, recorded only if our trainer refused the model."""


def record(model_type: str, name: str, tokenizer: Untyped, methods: tuple[str, ...]) -> Untyped:
    """Train a small model of `model_type` with each method. Return the model type's row for
    results/models.json."""
    row: dict[str, Untyped] = {
        "model_type": model_type,
        "class": name,
        "transformers": transformers.__version__,
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        try:
            config = small_config(model_type, len(tokenizer))
            with torch.device("meta"):
                empty = transformers.AutoModelForCausalLM.from_config(config)
            parameters = sum(p.numel() for p in empty.parameters())
            if parameters > MOST_PARAMETERS:
                raise ValueError(f"{parameters:,} parameters with the smallest known sizes")
            build(folder / "model", config, tokenizer)
        except Exception as error:  # configurations and models raise anything
            return row | {"not_built": first_line(error)}
        row |= {"parameters": parameters, "needs": needs(empty)}
        for method in methods:
            row[method] = asdict(outcome(folder / method, folder / "model", method))
    return row


def outcome(folder: Path, model: Path, method: str) -> Outcome:
    ours = train_ours(folder / "ours", model, method)
    if ours.error is not None:
        return _not_trained(folder, model, method, ours)
    state: State = "fast" if "_block" in ours.patched.partition(";")[0] else "stock"
    if method == "grpo":
        return Outcome(state=state, detail=ours.patched)
    stock = train_stock(folder / "stock", model, ours.adapter, own_logits=ours.own_logits)
    pairs = zip(ours.losses, stock, strict=True)
    difference = max(abs(a - b) / abs(b) for a, b in pairs)
    return Outcome(
        state=state if difference <= LIMIT else "different",
        detail=ours.patched,
        difference=difference,
        own_logits=ours.own_logits,
    )


def _not_trained(folder: Path, model: Path, method: str, ours: Trained) -> Outcome:
    refused = ours.error.category in ("user", "data") and not ours.losses
    stock_fails = None
    if method == "full":
        try:
            train_stock(folder / "stock", model, None)
        except Exception as error:  # stock TRL on an unsupported model raises anything
            stock_fails = first_line(error)
    return Outcome(
        state="refused" if refused else "failed",
        detail=ours.error.message,
        stock_fails=stock_fails,
    )


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:200]}"

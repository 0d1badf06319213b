"""Tokens that the data uses and the base model never learned, and new ones: they train as rows.

In a LoRA run as PEFT's `trainable_token_indices`: k rows of H numbers for each matrix, in training
and in the adapter, and stock PEFT loads them. With full tuning all rows train anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import peft
import pyarrow.compute as pc
import torch
from peft.utils.other import set_additional_trainable_modules

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.events import EventLog

from .matrices import Matrices, Matrix, mean_row
from .new_tokens import NewTokens
from .untrained_rows import find_untrained

Untyped = Any  # Any: transformers, peft and datasets are not typed

TRAINING_BYTES = 16
"""Of one number that trains in fp32: itself, its gradient, Adam's two moments."""
_SHOWN = 20


def used_tokens(dataset: Untyped) -> list[int]:
    """Ids that occur in the column `input_ids` of a `datasets.Dataset`, ascending."""
    column = dataset.data.column("input_ids")
    found = {int(one) for chunk in column.chunks for one in pc.unique(chunk.flatten()).to_pylist()}
    return sorted(found)


def train_token_rows(
    model: Untyped,
    tokenizer: Untyped,
    used: Sequence[int],
    new: NewTokens,
    events: EventLog,
    *,
    adapter_itemsize: int,
) -> None:
    """Give the rows that need it a value to start from, and let them train.

    `model`: with an adapter, or to be tuned in full. `used`: token ids of the training rows.
    `adapter_itemsize`: bytes of one number in the adapter's file.
    """
    matrices = Matrices.of(model.get_base_model() if _is_lora(model) else model)
    stuck = _without_rows(matrices)
    # What stays as it is, an adapter does not hold: it must not be given another value either.
    able = [matrix for matrix in matrices.distinct if matrix not in stuck]
    untrained = sorted({row for matrix in able for row in _start(matrix, used, new)})
    if untrained:
        _tell_untrained(events, tokenizer, untrained)
    rows = sorted({*untrained, *new.ids})
    if not rows or not _is_lora(model):
        return
    if stuck:
        _tell_stuck(stuck, new, events)
    chosen = [matrix for matrix in able if not matrix.weight.requires_grad]
    if not chosen:
        return
    _attach(model, chosen, rows)
    numbers = len(rows) * sum(matrix.weight.shape[1] for matrix in chosen)
    events.message(
        f"token rows of {' and '.join(one.name for one in chosen)} train, {len(rows)} in each: "
        f"{numbers * adapter_itemsize:,} bytes more in the adapter, "
        f"{numbers * TRAINING_BYTES:,} in memory.",
        data={
            "token_ids": list(rows),
            "matrices": [one.name for one in chosen],
            "adapter_bytes": numbers * adapter_itemsize,
            "memory_bytes": numbers * TRAINING_BYTES,
        },
    )


def _without_rows(matrices: Matrices) -> list[Matrix]:
    """The frozen matrices whose rows cannot train: PEFT computes a head with trained rows without
    its bias, which would be another model."""
    if matrices.head is None or getattr(matrices.head.module, "bias", None) is None:
        return []
    return [
        one
        for one in matrices.distinct
        if not one.weight.requires_grad and (matrices.tied or one is matrices.head)
    ]


def _is_lora(model: Untyped) -> bool:
    return isinstance(model, peft.PeftModel)


def _start(matrix: Matrix, used: Sequence[int], new: NewTokens) -> list[int]:
    """The used rows of a matrix that were never trained; empty ones get the trained rows' mean."""
    found = find_untrained(matrix.weight)
    rows = [row for row in used if found.rows[row] and row not in new.ids]
    empty = [row for row in rows if found.empty[row]]
    if empty:
        trained = (~found.rows).nonzero()[:, 0]
        with torch.no_grad():
            start = mean_row(matrix.weight, trained).to(matrix.weight.dtype)
            matrix.weight[torch.tensor(empty, device=start.device)] = start
    return rows


def _attach(model: Untyped, matrices: Sequence[Matrix], rows: list[int]) -> None:
    causal, config = model.get_base_model(), model.peft_config["default"]
    config.trainable_token_indices = {matrix.name: list(rows) for matrix in matrices}
    tuner = model.base_model
    set_additional_trainable_modules(
        model=causal,
        peft_config=config,
        model_config=tuner.get_model_config(causal),
        adapter_name="default",
    )
    for module in causal.modules():
        if not isinstance(module, peft.utils.TrainableTokensWrapper):
            continue
        # PEFT makes them in the matrix's dtype: bf16 would round their updates away
        delta = module.token_adapter.trainable_tokens_delta["default"]
        delta.data = delta.data.float()
        base = module.token_adapter.get_base_layer()
        if isinstance(base, torch.nn.Linear):
            module.bias = None  # TRL asks for it, and PEFT's wrapper does not hand it on
        elif base.padding_idx in rows:
            # It is a token of the data as well (pad == eos), and torch gives the row of
            # padding_idx no gradient. Padding itself is read by no label.
            base.padding_idx = None


def _tell_untrained(events: EventLog, tokenizer: Untyped, rows: Sequence[int]) -> None:
    names = [f"{tokenizer.convert_ids_to_tokens(row)!r} ({row})" for row in rows[:_SHOWN]]
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    events.message(
        f"the base model never learned {len(rows)} of the tokens that the data uses: "
        f"{', '.join(names)}{more}. Those that were empty start from the mean of the trained rows.",
        data={"token_ids": list(rows)},
    )


def _tell_stuck(stuck: Sequence[Matrix], new: NewTokens, events: EventLog) -> None:
    names = " and ".join(one.name for one in stuck)
    if new.ids:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.add_tokens: the head has a bias, so that {names} cannot train by rows.",
            hint=f"Train it as a whole: add {names} to recipe.lora.target_modules and set "
            "recipe.allow_full_embeddings=true.",
            param="recipe.add_tokens",
        )
    events.message(
        f"the model's head has a bias: the rows of {names} stay as they are, and the model may not "
        "learn to say those tokens.",
        level="warn",
    )

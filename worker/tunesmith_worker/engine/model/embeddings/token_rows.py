"""Train single rows: new tokens, and tokens in the data that the base model never learned.

A LoRA run uses PEFT's `trainable_token_indices`: PEFT trains and saves only the chosen rows of the
embedding and the head. Stock PEFT can load the trained rows. With full tuning, all rows are
trained.
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
"""Training memory per trained fp32 parameter in bytes: value, gradient and Adam's two moments."""
_SHOWN = 20  # maximum number of tokens listed in an event


def used_tokens(dataset: Untyped) -> list[int]:
    """Return the sorted token ids in the column `input_ids` of a `datasets.Dataset`."""
    column = dataset.data.column("input_ids")
    ids = {int(i) for chunk in column.chunks for i in pc.unique(chunk.flatten()).to_pylist()}
    return sorted(ids)


def train_token_rows(
    model: Untyped,
    tokenizer: Untyped,
    used: Sequence[int],
    new: NewTokens,
    events: EventLog,
    *,
    adapter_itemsize: int,
) -> None:
    """Initialise the rows of tokens that the model never learned and make these rows trainable.

    `model`: a PEFT model, or the plain model for full tuning. `used`: token ids that occur in
    the training data. `adapter_itemsize`: bytes per parameter in the adapter's file.
    """
    matrices = Matrices.of(model.get_base_model() if _is_lora(model) else model)
    frozen = _frozen_matrices(matrices)
    # The adapter does not contain frozen matrices, so their rows must keep their values.
    trainable = [matrix for matrix in matrices.distinct if matrix not in frozen]
    untrained = sorted({row for matrix in trainable for row in _initialise(matrix, used, new)})
    if untrained:
        _report_untrained(events, tokenizer, untrained)
    rows = sorted({*untrained, *new.ids})
    if not rows or not _is_lora(model):
        return
    if frozen:
        _report_frozen(frozen, new, events)
    chosen = [matrix for matrix in trainable if not matrix.weight.requires_grad]
    if not chosen:
        return
    _attach(model, chosen, rows)
    count = len(rows) * sum(matrix.weight.shape[1] for matrix in chosen)
    events.message(
        f"token rows of {' and '.join(matrix.name for matrix in chosen)} are trained, {len(rows)} "
        f"in each: they add {count * adapter_itemsize:,} bytes to the adapter and need "
        f"{count * TRAINING_BYTES:,} bytes of memory.",
        data={
            "token_ids": list(rows),
            "matrices": [matrix.name for matrix in chosen],
            "adapter_bytes": count * adapter_itemsize,
            "memory_bytes": count * TRAINING_BYTES,
        },
    )


def _frozen_matrices(matrices: Matrices) -> list[Matrix]:
    """Return the matrices of which PEFT cannot train single rows.

    If single rows of a head are trained, PEFT drops the head's bias, which would change the
    model."""
    if matrices.head is None or getattr(matrices.head.module, "bias", None) is None:
        return []
    return [
        matrix
        for matrix in matrices.distinct
        if not matrix.weight.requires_grad and (matrices.tied or matrix is matrices.head)
    ]


def _is_lora(model: Untyped) -> bool:
    return isinstance(model, peft.PeftModel)


def _initialise(matrix: Matrix, used: Sequence[int], new: NewTokens) -> list[int]:
    """Return the rows of tokens that occur in the data but were never trained. Set rows that are
    zero, constant or not finite to the mean of the trained rows."""
    untrained = find_untrained(matrix.weight)
    rows = [row for row in used if untrained.rows[row] and row not in new.ids]
    empty = [row for row in rows if untrained.empty[row]]
    if empty:
        trained = (~untrained.rows).nonzero()[:, 0]
        with torch.no_grad():
            mean = mean_row(matrix.weight, trained).to(matrix.weight.dtype)
            matrix.weight[torch.tensor(empty, device=mean.device)] = mean
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
        # PEFT uses the matrix's dtype. In bf16, rounding would lose updates.
        delta = module.token_adapter.trainable_tokens_delta["default"]
        delta.data = delta.data.float()
        base = module.token_adapter.get_base_layer()
        if isinstance(base, torch.nn.Linear):
            module.bias = None  # TRL reads `bias`, which PEFT's wrapper lacks
        elif base.padding_idx in rows:
            # padding_idx stops a row's gradient, but here the padding token is also in the data.
            base.padding_idx = None


def _report_untrained(events: EventLog, tokenizer: Untyped, rows: Sequence[int]) -> None:
    names = [f"{tokenizer.convert_ids_to_tokens(row)!r} ({row})" for row in rows[:_SHOWN]]
    more = f" and {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
    events.message(
        f"the base model never learned {len(rows)} of the tokens in the data: "
        f"{', '.join(names)}{more}. If a token's row in a matrix is zero, constant or not finite, "
        "it starts as the mean of the rows that the base model learned.",
        data={"token_ids": list(rows)},
    )


def _report_frozen(frozen: Sequence[Matrix], new: NewTokens, events: EventLog) -> None:
    names = " and ".join(matrix.name for matrix in frozen)
    if new.ids:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.add_tokens: the head has a bias, so single rows of {names} cannot be trained.",
            hint=f"Train the whole matrix: add {names} to recipe.lora.target_modules and set "
            "recipe.allow_full_embeddings=true.",
            param="recipe.add_tokens",
        )
    events.message(
        f"the model's head has a bias, so single rows of {names} cannot be trained: the model may "
        "not learn to generate the tokens that the base model never learned.",
        level="warn",
    )

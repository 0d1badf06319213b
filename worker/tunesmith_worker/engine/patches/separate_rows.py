"""Test whether packed rows affect each other in stock layers.

transformers builds an attention mask for packed rows from their positions, but only for some
architectures. In other architectures, a packed row also depends on the row before it: through
attention, positions, convolutions or a recurrent state. The test compares a row in a pack with the
same row alone. Rounding hides small differences, so the test also checks that the row's logits have
no gradient with respect to the row before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed

ROW = 16
"""Maximum number of tokens in each of the two test rows."""
TOLERANCE = {torch.float32: 1e-4}
TOLERANCE_16_BITS = 0.05
"""Largest accepted difference (RMS) between a row's logits in a pack and alone, relative to the
standard deviation of the logits. In two-layer models with random weights, the difference was 2e-7
(bf16: 0.004) if only rounding differed, and 0.009 to 0.8 if rows affected each other."""


def mixed_rows_reason(model: Untyped, token_ids: Sequence[int]) -> str | None:
    """Return why packed rows of this causal language model affect each other; None if they do not.

    `token_ids`: at least one id that occurs in the data. The model must not be patched."""
    name = type(model).__name__
    first, second = trial_rows(token_ids, model.config.get_text_config().vocab_size)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            packed = model(**_pack([first, second], model.device), use_cache=False).logits
            alone = model(**_pack([second], model.device), use_cache=False).logits
        depends = _depends_on_first(model, first, second)
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return f"{name} cannot read packed rows ({type(error).__name__}: {_first_line(error)})"
    finally:
        model.train(was_training)
    inside, expected = packed[0, len(first) :].float(), alone[0].float()
    apart = float((inside - expected).square().mean().sqrt() / expected.std().clamp_min(1e-6))
    if apart > TOLERANCE.get(model.dtype, TOLERANCE_16_BITS):
        return f"{name} does not separate packed rows (a row's logits change by {apart:.1g})"
    if depends:
        return f"{name} does not separate packed rows (a row's logits depend on the previous row)"
    return None


def _depends_on_first(model: Untyped, first: list[int], second: list[int]) -> bool:
    """Return True if the logits of the second packed row depend on the embeddings of the first
    row."""
    zeros: list[torch.Tensor] = []

    def add_zeros(module: Untyped, inputs: Untyped, output: torch.Tensor) -> torch.Tensor:
        zeros.append(torch.zeros_like(output, requires_grad=True))
        return output + zeros[-1]

    handle = model.get_input_embeddings().register_forward_hook(add_zeros)
    try:
        with torch.enable_grad():
            logits = model(**_pack([first, second], model.device), use_cache=False).logits
            total = logits[0, len(first) :].float().logsumexp(-1).sum()
            (gradient,) = torch.autograd.grad(total, zeros[0])
    finally:
        handle.remove()
    return bool(gradient[0, : len(first)].any())


def trial_rows(token_ids: Sequence[int], vocabulary: int) -> tuple[list[int], list[int]]:
    """Return two rows of different tokens and unequal length. The tokens come from the data. If the
    data has only one token, another token is added."""
    ids = list(dict.fromkeys(token_ids))[: 2 * ROW]
    if len(ids) == 1:
        ids.append((ids[0] + 1) % vocabulary)
    half = len(ids) // 2
    return (ids[:half] * ROW)[: ROW - 1], (ids[half:] * ROW)[:ROW]


def _pack(rows: Sequence[Sequence[int]], device: torch.device) -> dict[str, Untyped]:
    lengths = [len(row) for row in rows]
    ends = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
    index = torch.arange(len(rows), dtype=torch.int32).repeat_interleave(torch.tensor(lengths))
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row]], device=device),
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None].to(device),
        "cu_seq_lens_q": ends,
        "cu_seq_lens_k": ends,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
        "seq_idx": index[None].to(device),
    }


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:120]

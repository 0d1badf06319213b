"""Log-probabilities of completions under the trained model: the forward pass of GRPO.

A prompt may be computed once per group, or once per completion: the values and gradients are equal,
but time and memory differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import peft
import torch
from torch.nn.parallel import DistributedDataParallel

from tunesmith_kernels.segments import Prefixes
from tunesmith_worker.engine.patches.attention_interface import reads_segments
from tunesmith_worker.engine.patches.batch_layout import BatchLayout, ScoredTokens, batch_layout
from tunesmith_worker.engine.patches.head import is_head_patched

from .batches import to_device
from .groups import GroupBatch, GroupLayout, GroupRow, end_to_end, side_by_side

__all__ = ["CompletionScores", "score_completions"]

Untyped = Any  # Any: transformers and PEFT are not typed


class CompletionScores(NamedTuple):
    """Scores of B completions, the longest of which has C tokens.

    Scores are zero after the end of a completion and in skipped rows."""

    log_probs: torch.Tensor
    """Log-probabilities, fp32 [B, C], in the order of the rows passed to `score_completions`."""
    entropy: torch.Tensor | None
    """Entropies in nats, fp32 [B, C]; None if not requested."""
    layout: GroupLayout | Literal["padded"]
    """Layout of the forward passes."""
    tokens: int
    """Number of tokens in the forward passes, padding included."""


def score_completions(
    model: Untyped,
    rows: Sequence[GroupRow],
    *,
    layout: GroupLayout,
    device: torch.device,
    temperature: float = 1.0,
    max_tokens: int | None = None,
    entropy: bool | Literal["grad"] = False,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> CompletionScores:
    """Compute log p(token | preceding tokens, temperature) of every completion token.

    `model`: a causal language model patched by `patch()`. If the model's attention is not patched,
    rows are padded, and `layout` has no effect. `temperature`: divides the logits after the model's
    own scale and soft cap, as in TRL. `max_tokens`: maximum tokens per forward pass. `entropy`:
    "grad" makes entropies differentiable; log-probabilities are always differentiable. All
    activations are kept for the backward pass.

    Raises ValueError for an empty prompt and for a model whose head is not patched.
    """
    causal = _causal(model)
    if not is_head_patched(causal):
        raise ValueError(f"the head of {type(causal).__name__} is not patched: call patch() first")
    padded = not reads_segments(causal)
    batches = side_by_side(rows, max_tokens) if padded else end_to_end(rows, layout, max_tokens)
    size = (len(rows), max((len(row.completion_ids) for row in rows), default=0))
    outputs = [_forward(model, batch, temperature, entropy, device, autocast) for batch in batches]
    places = [to_device(batch.places, device) for batch in batches]
    return CompletionScores(
        log_probs=_scatter([output.log_probs for output in outputs], places, size, device),
        entropy=_scatter([output.entropy for output in outputs], places, size, device)
        if entropy
        else None,
        layout="padded" if padded else layout,
        tokens=sum(batch.input_ids.numel() for batch in batches),
    )


def _causal(model: Untyped) -> Untyped:
    if isinstance(model, DistributedDataParallel):
        model = model.module
    return model.get_base_model() if isinstance(model, peft.PeftModel) else model


def _forward(
    model: Untyped,
    batch: GroupBatch,
    temperature: float,
    entropy: bool | Literal["grad"],
    device: torch.device,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> Untyped:
    inputs = {"input_ids": to_device(batch.input_ids, device)}
    if batch.bounds is None:
        inputs["attention_mask"] = to_device(batch.attention_mask, device)
    else:
        inputs["position_ids"] = to_device(batch.position_ids, device)
        bounds = torch.tensor(batch.bounds, dtype=torch.int32)
        inputs["cu_seq_lens_q"] = to_device(bounds, device)
    layout = BatchLayout(
        bounds=batch.bounds,
        prefixes=_prefixes_on(batch.prefixes, device),
        scored=ScoredTokens(
            sources=to_device(batch.sources, device),
            targets=to_device(batch.targets, device),
            temperature=temperature,
            entropy=entropy,
        ),
    )
    with autocast(), batch_layout(layout):
        return model(**inputs, fused_lm_head=True)


def _prefixes_on(prefixes: Prefixes | None, device: torch.device) -> Prefixes | None:
    if prefixes is None:
        return None
    keys, cumulative = to_device(prefixes.keys, device), to_device(prefixes.cumulative, device)
    return replace(prefixes, keys=keys, cumulative=cumulative)


def _scatter(
    values: Sequence[torch.Tensor],
    places: Sequence[torch.Tensor],
    size: tuple[int, int],
    device: torch.device,
) -> torch.Tensor:
    """Return a tensor of `size` with `values` at the flat indices `places` and zeros elsewhere."""
    if not values:
        # The caller may run backward even if there are no values.
        return torch.zeros(size, device=device, requires_grad=torch.is_grad_enabled())
    flat = torch.cat(list(values))
    zeros = flat.new_zeros(size[0] * size[1])
    return zeros.index_copy(0, torch.cat(list(places)), flat).view(size)

"""Linear head and cross entropy in one, without the [N, V] logits and without the unlabelled rows.

    loss = sum over rows i with a label of -log softmax(transform(W h_i + b))_{label_i} / divisor
Rows whose label is `ignore_index` are dropped before the head's GEMM. What remains are chunked
log-probabilities (log_prob.py): the gradients of hidden, weight and bias are computed in forward,
chunk by chunk, and backward scales them by the loss's upstream scalar.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn.functional import cross_entropy, linear

from .log_prob import token_log_probs
from .tiles import wide

__all__ = ["linear_cross_entropy", "linear_cross_entropy_reference"]


def linear_cross_entropy_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    reduction: Literal["mean", "sum"] = "mean",
    num_items: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """The same number from full logits, in fp32 after the projection."""
    logits = linear(hidden.reshape(-1, hidden.shape[-1]), weight, bias)
    logits = logits.to(wide(logits.dtype)) * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    labels = labels.reshape(-1)
    total = cross_entropy(logits, labels, ignore_index=ignore_index, reduction="sum")
    if reduction == "sum":
        return total
    return total / (max(1, int((labels != ignore_index).sum())) if num_items is None else num_items)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    labels: torch.Tensor,
    *,
    ignore_index: int = -100,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    reduction: Literal["mean", "sum"] = "mean",
    num_items: int | torch.Tensor | None = None,
    byte_budget: int | None = None,
) -> torch.Tensor:
    """The scalar loss in nats, fp32; hidden [..., H], weight [V, H], bias [V], labels [...].

    labels[i] is scored under hidden[i]: the caller has shifted them. "mean" divides by
    `num_items` (the label tokens of the whole optimiser step) or, without it, by the labels
    present; without any label the loss and its gradients are 0. Differentiable in hidden, weight
    and bias.

    byte_budget: as in `token_log_probs`. Raises ValueError for arguments that do not fit.
    """
    if labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"labels must be {list(hidden.shape[:-1])}, one for each row of hidden, "
            f"got {list(labels.shape)}"
        )
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction must be "mean" or "sum", got {reduction!r}')
    if reduction == "sum" and num_items is not None:
        raise ValueError('num_items divides a mean: leave it out with reduction="sum"')
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1)
    kept = (labels != ignore_index).nonzero()[:, 0]
    if len(kept) < len(labels):
        hidden, labels = hidden[kept], labels[kept]
    log_probs = token_log_probs(
        hidden,
        weight,
        bias,
        labels,
        softcap=softcap,
        logit_scale=logit_scale,
        byte_budget=byte_budget,
    ).log_probs
    if reduction == "sum":
        return -log_probs.sum()
    return -log_probs.sum() / (max(1, len(labels)) if num_items is None else num_items)

"""Log-probs of target tokens from a language-model head, without a full [N, V] logits tensor.

Row i has the hidden state h_i, the target t_i and the logits z = transform(W h_i + b). The other
symbols are defined in head_rows.py.

    log p_i = z_{t_i} - logsumexp_j z_j
    d log p_i / d h_i = g Q_i (f_t W_{t_i} - sum_j f_j q_j W_j)
    d / d W_j of sum_i u_i log p_i = sum_i u_i g Q_i (f_t [j = t_i] - f_j q_j) h_i

Rows are processed in chunks whose logits fit a byte budget. The forward pass already computes d log
p / d h, [N, H], from the logits of each chunk. The backward pass only multiplies d log p / d h by
the upstream gradients u_i. The head's gradient is a sum over rows, weighted by u_i. The forward
pass computes the head's gradient with u_i = 1 for all rows. If all u_i are equal, as for a mean
over tokens, the backward pass scales the head's gradient. If the u_i differ, the backward pass
computes the logits again. Log-probs without full logits are described in arXiv 2411.09009. Liger's
kernel also computes gradients in the forward pass.

If only k rows of the head are trained, the head is frozen, and the trained rows are a separate
tensor [k, H]. The gradient of the trained rows needs only d log p / d z of k columns, [N, k], and
no tensor [V, H].
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from .head_chunks import (
    HeadCall,
    HeadGradient,
    TrainedRows,
    chunks,
    hidden_gradients,
    row_gradients,
)
from .head_types import LogitTransform
from .tiles import wide

__all__ = ["TokenLogProbs", "token_log_probs", "token_log_probs_reference"]

# Measured (docs/contributing/log): on a CPU core, a GEMM is no faster with more than 512 rows. A
# GPU needs more rows.
_MOST_ROWS = {"cpu": 512}
_MOST_ROWS_ELSEWHERE = 4096
_BYTES = {"cpu": 128 << 20}
_BYTES_ELSEWHERE = 2 << 30


class TokenLogProbs(NamedTuple):
    """Results of `token_log_probs` for each row. The dtype is fp32, or float64 for float64
    input."""

    log_probs: torch.Tensor  # [N]
    entropy: torch.Tensor | None  # [N], in nats
    is_top1: torch.Tensor | None  # [N] bool: the target is the argmax (the first at a tie)


def token_log_probs_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    trained: TrainedRows | None = None,
) -> TokenLogProbs:
    """Compute log-probs from full logits. The logits are converted to fp32 first."""
    if trained is not None:
        weight = weight.index_copy(0, trained.ids, trained.values.to(weight.dtype))
    logits = linear(hidden, weight, bias)
    logits = logits.to(wide(logits.dtype)) * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = torch.log_softmax(logits / temperature, -1)
    return TokenLogProbs(
        log_p.gather(1, targets[:, None])[:, 0],
        -(log_p.exp() * log_p).sum(-1),
        logits.argmax(-1) == targets,
    )


def token_log_probs(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    logit_scale: float = 1.0,
    entropy: bool | Literal["grad"] = False,
    top1: bool = False,
    byte_budget: int | None = None,
    trained: TrainedRows | None = None,
) -> TokenLogProbs:
    """Return the log-prob of each row's target.

    The shapes are: hidden [N, H], weight [V, H], bias [V] or None, and targets [N] int64. N may be
    0.

    `log_probs` is differentiable in hidden, weight and bias. With entropy="grad", `entropy` is also
    differentiable. The logits are computed in the autocast dtype, or without autocast in the dtype
    of `hidden`. With a trainable head, one fp32 tensor [V, H] is kept in memory from the forward
    pass to the backward pass.

    `trained`: trainable rows that replace rows of a frozen weight.

    `byte_budget`: maximum size of a chunk of logits in bytes. None means 128 MiB on a CPU and 2 GiB
    on other devices. A chunk has at least one row, even if this row is larger than the budget.

    Raises ValueError for wrong shapes, dtypes or targets.
    """
    _check(hidden, weight, bias, targets, byte_budget)
    if trained is not None:
        _check_trained(weight, bias, trained)
    kind = hidden.device.type
    recorded = torch.is_grad_enabled()
    call = HeadCall(
        transform=LogitTransform(temperature=temperature, softcap=softcap, logit_scale=logit_scale),
        dtype=torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype,
        byte_budget=byte_budget or _BYTES.get(kind, _BYTES_ELSEWHERE),
        most_rows=_MOST_ROWS.get(kind, _MOST_ROWS_ELSEWHERE),
        entropy=bool(entropy),
        entropy_gradient=entropy == "grad",
        top1=top1,
        hidden_gradient=recorded and hidden.requires_grad,
        weight_gradient=recorded and weight.requires_grad,
        bias_gradient=recorded and bias is not None and bias.requires_grad,
        row_gradient=recorded and trained is not None and trained.values.requires_grad,
    )
    ids, values = (None, None) if trained is None else trained
    scored = _TokenLogProbs.apply(hidden, weight, bias, targets, call, ids, values)  # type: ignore[no-untyped-call]  # untyped in torch
    return TokenLogProbs(*scored)


def _check(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    byte_budget: int | None,
) -> None:
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            "hidden must be [N, H] and weight [V, H], "
            f"got {list(hidden.shape)} and {list(weight.shape)}"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must be [{weight.shape[0]}], got {list(bias.shape)}")
    if targets.shape != hidden.shape[:1] or targets.dtype != torch.int64:
        raise ValueError(
            f"targets must be [{hidden.shape[0]}] int64, got {list(targets.shape)} {targets.dtype}"
        )
    if byte_budget is not None and byte_budget < 1:
        raise ValueError(f"byte_budget must be at least 1, got {byte_budget}")
    # Only on a CPU: on a GPU, this check would wait for the device. There, a wrong target gives the
    # log-prob NaN.
    if targets.device.type == "cpu" and len(targets):
        low, high = (int(bound) for bound in targets.aminmax())
        if low < 0 or high >= weight.shape[0]:
            raise ValueError(
                f"targets must be in [0, {weight.shape[0]}), got {low if low < 0 else high}; "
                "remove rows without a label"
            )


def _check_trained(weight: torch.Tensor, bias: torch.Tensor | None, trained: TrainedRows) -> None:
    ids, values = trained
    if ids.dim() != 1 or ids.dtype != torch.int64 or values.shape != (len(ids), weight.shape[1]):
        raise ValueError(
            f"trained must be ids [k] int64 and values [k, {weight.shape[1]}], "
            f"got {list(ids.shape)} {ids.dtype} and {list(values.shape)}"
        )
    if weight.requires_grad or (bias is not None and bias.requires_grad):
        raise ValueError(
            "trained rows require a frozen head, but the head's weight or bias has a gradient"
        )


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # torch has no type for the context
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        targets: torch.Tensor,
        call: HeadCall,
        row_ids: torch.Tensor | None,
        row_values: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        ctx.set_materialize_grads(False)
        trained = None
        if row_ids is not None and row_values is not None:
            trained = TrainedRows(row_ids, row_values)
        statistics = call.statistics(len(hidden), hidden)
        unit = torch.empty_like(hidden) if call.hidden_gradient else None
        unit_entropy = (
            torch.empty_like(hidden) if call.hidden_gradient and call.entropy_gradient else None
        )
        at_rows: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        head = HeadGradient(weight, bias, call)
        with torch.autocast(hidden.device.type, enabled=False):
            cast = weight.to(call.dtype)
            cast_bias = None if bias is None else bias.to(call.dtype)
            for chunk in chunks(hidden, cast, cast_bias, targets, statistics, call, trained):
                if trained is not None and call.row_gradient:
                    for parts, part in zip(at_rows, row_gradients(chunk, trained), strict=True):
                        parts.extend([] if part is None else [part])
                if unit is not None:
                    log_prob_part, entropy_part = hidden_gradients(chunk, cast, trained)
                    unit[chunk.rows] = log_prob_part
                    if unit_entropy is not None and entropy_part is not None:
                        unit_entropy[chunk.rows] = entropy_part
                if call.head_gradient:
                    head.add(chunk, torch.ones_like(chunk.statistics.target)[:, None], None)
            dtype = wide(call.dtype)
            log_probs = statistics.log_probs().to(dtype)
            entropy = statistics.entropy().to(dtype) if call.entropy else None
        again = (hidden, weight, bias, targets) if call.head_gradient else (None,) * 4
        rows = [torch.cat(parts) if parts else None for parts in at_rows]
        kept = (*rows, hidden, row_values) if call.row_gradient else (None,) * 4
        ctx.save_for_backward(unit, unit_entropy, head.weight, head.bias, *again, *kept)
        ctx.call = call
        fixed = [statistics.is_top1, None if call.entropy_gradient else entropy]
        ctx.mark_non_differentiable(*(output for output in fixed if output is not None))
        return log_probs, entropy, statistics.is_top1

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,  # torch has no type for the context
        by_log_prob: torch.Tensor | None,
        by_entropy: torch.Tensor | None,
        _: None,
    ) -> tuple[torch.Tensor | None, ...]:
        unit, unit_entropy, weight_sum, bias_sum, *rest = ctx.saved_tensors
        hidden, weight, bias, targets, at_rows, at_rows_entropy, states, row_values = rest
        grad_hidden = _scaled_rows(unit, by_log_prob, unit_entropy, by_entropy)
        by_row = _scaled_rows(at_rows, by_log_prob, at_rows_entropy, by_entropy)
        grad_rows = None
        if by_row is not None:
            grad_rows = torch.mm(by_row.t(), states.to(by_row.dtype)).to(row_values.dtype)
        if weight_sum is None and bias_sum is None:
            return grad_hidden, None, None, None, None, None, grad_rows
        if by_entropy is not None or by_log_prob is None or not _all_equal(by_log_prob):
            sums = _head_gradient_again(
                hidden, weight, bias, targets, by_log_prob, by_entropy, ctx.call
            )
            weight_sum, bias_sum, by_log_prob = sums.weight, sums.bias, None
        grad_weight = _scaled_sum(weight_sum, by_log_prob, weight)
        grad_bias = _scaled_sum(bias_sum, by_log_prob, bias)
        return grad_hidden, grad_weight, grad_bias, None, None, None, grad_rows


def _scaled_rows(
    unit: torch.Tensor | None,
    by_log_prob: torch.Tensor | None,
    unit_entropy: torch.Tensor | None,
    by_entropy: torch.Tensor | None,
) -> torch.Tensor | None:
    """Return one gradient per row: the saved gradient of the row's log-prob times its upstream
    gradient, plus the saved gradient of the row's entropy times its upstream gradient."""
    parts = ((unit, by_log_prob), (unit_entropy, by_entropy))
    terms = [
        part * upstream[:, None]
        for part, upstream in parts
        if part is not None and upstream is not None
    ]
    return sum(terms[1:], terms[0]).to(unit.dtype) if unit is not None and terms else None


def _all_equal(upstream: torch.Tensor) -> bool:
    """Return True if all upstream gradients are equal.

    The gradients of a sum or mean have stride 0 in memory, so they are known to be equal without
    reading them."""
    return upstream.stride(0) == 0 or len(upstream) < 2 or bool((upstream == upstream[0]).all())


def _scaled_sum(
    total: torch.Tensor | None, upstream: torch.Tensor | None, like: torch.Tensor | None
) -> torch.Tensor | None:
    if total is None or like is None:
        return None
    if upstream is None:
        return total.to(like.dtype)
    if len(upstream) == 0:
        return torch.zeros_like(like)
    # Not in place, because a second backward over a retained graph reads the sum again.
    return torch.mul(total, upstream[0], out=torch.empty_like(like))


def _head_gradient_again(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    targets: torch.Tensor,
    by_log_prob: torch.Tensor | None,
    by_entropy: torch.Tensor | None,
    call: HeadCall,
) -> HeadGradient:
    asked = by_entropy is not None
    call = replace(call, entropy=asked, entropy_gradient=asked, top1=False)
    sums = HeadGradient(weight, bias, call)
    statistics = call.statistics(len(hidden), hidden)
    if by_log_prob is None:
        by_log_prob = torch.zeros_like(statistics.target)
    with torch.autocast(hidden.device.type, enabled=False):
        cast = weight.to(call.dtype)
        cast_bias = None if bias is None else bias.to(call.dtype)
        for chunk in chunks(hidden, cast, cast_bias, targets, statistics, call):
            entropy = None if by_entropy is None else by_entropy[chunk.rows, None]
            sums.add(chunk, by_log_prob[chunk.rows, None], entropy)
    return sums

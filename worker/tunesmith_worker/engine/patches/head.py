"""The loss head: only labelled tokens are scored, their gradient comes with them.

Stands in front of what TRL puts on a causal language model (`add_fused_lm_head`) and answers the
same call with the same fields. Where the batch's layout says which hidden states score which
tokens, no labels are needed, and the fields are flat.
"""

from __future__ import annotations

import functools
import types
from typing import Any, Literal
from weakref import WeakSet

import torch

from tunesmith_kernels.head_chunks import TrainedRows
from tunesmith_kernels.log_prob import TokenLogProbs, token_log_probs

from .batch_layout import ScoredTokens, current_layout
from .token_rows import has_token_rows, trained_rows
from .trl_compat import FusedCausalLMOutput, logit_scale

Untyped = Any  # Any: transformers and TRL are not typed
_IGNORED = -100
_patched: WeakSet[torch.nn.Module] = WeakSet()


def is_head_patched(model: torch.nn.Module) -> bool:
    """Whether this causal language model answers for a layout's `scored`."""
    return model in _patched


class HeadPatch:
    def __init__(self, model: Untyped) -> None:
        """`model`: a causal language model that TRL's trainer has been given."""
        self._model = model
        self._stock = vars(model).get("forward")
        stock = model.forward

        @functools.wraps(type(model).forward)  # `generate` reads its parameters
        def forward(
            this: Untyped,
            *args: Untyped,
            fused_lm_head: bool = False,
            labels: torch.Tensor | None = None,
            **kwargs: Untyped,
        ) -> Untyped:
            layout = current_layout()
            if fused_lm_head and layout is not None and layout.scored is not None:
                return _score_flat(this, layout.scored, *args, **kwargs)
            if not fused_lm_head or labels is None or _needs_stock(this, kwargs):
                if labels is not None:
                    kwargs["labels"] = labels
                return stock(*args, fused_lm_head=fused_lm_head, **kwargs)
            return _score(this, labels, *args, **kwargs)

        model.forward = types.MethodType(forward, model)
        _patched.add(model)

    def undo(self) -> None:
        _patched.discard(self._model)
        if self._stock is None:
            self._model.__dict__.pop("forward", None)
        else:
            self._model.forward = self._stock


def _needs_stock(model: Untyped, kwargs: dict[str, Untyped]) -> bool:
    """Labels that are shifted already, and the load balancing loss of a mixture of experts."""
    balanced = getattr(model.config.get_text_config(), "output_router_logits", False)
    balanced = kwargs.get("output_router_logits", balanced)
    return bool(balanced) or kwargs.get("shift_labels") is not None


def _score(
    model: Untyped,
    labels: torch.Tensor,
    *args: Untyped,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Untyped,
) -> FusedCausalLMOutput:
    """labels: [B, T]. Every field but the loss is [B, T - 1], zero where there is no label."""
    kwargs["use_cache"] = False
    hidden = model.base_model(*args, **kwargs).last_hidden_state
    mask = labels[:, 1:] != _IGNORED
    layout = current_layout()
    places = None if layout is None else layout.labelled
    if places is None:
        places = mask.flatten().nonzero()[:, 0]
    sources = places + places // max(1, mask.shape[1])  # the same in [B, T]: a row is one longer
    targets = labels.flatten().index_select(0, sources + 1)
    scored = _log_probs(model, hidden, sources, targets, entropy=True, top1=True)
    per_token = [
        None if one is None else _Scatter.apply(one, places, mask.shape)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for one in (scored.log_probs, scored.entropy, scored.is_top1)
    ]
    log_probs, entropy, is_top1 = per_token
    count = mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    return FusedCausalLMOutput(
        loss=-log_probs.sum() / count,  # type: ignore[union-attr]  # log_probs is always there
        log_probs=log_probs,
        entropy=entropy,
        is_top1=is_top1,
        label_mask=mask,
    )


def _score_flat(
    model: Untyped, scored: ScoredTokens, *args: Untyped, **kwargs: Untyped
) -> FusedCausalLMOutput:
    """Log-probabilities and entropy [N] of `scored`'s tokens."""
    kwargs["use_cache"] = False
    hidden = model.base_model(*args, **kwargs).last_hidden_state
    log_probs, entropy, _ = _log_probs(
        model,
        hidden,
        scored.sources,
        scored.targets,
        temperature=scored.temperature,
        entropy=scored.entropy,
    )
    return FusedCausalLMOutput(log_probs=log_probs, entropy=entropy)


def _log_probs(
    model: Untyped,
    hidden: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    *,
    entropy: bool | Literal["grad"],
    temperature: float = 1.0,
    top1: bool = False,
) -> TokenLogProbs:
    """Of `targets` [N] under the hidden states [B, T, H] at flat places `sources` [N]."""
    config = model.config.get_text_config()
    weight, bias, trained = _head_weights(model.get_output_embeddings())
    return token_log_probs(
        hidden.flatten(0, 1).index_select(0, sources),
        weight,
        bias,
        targets,
        trained=trained,
        temperature=temperature,
        softcap=getattr(config, "final_logit_softcapping", None),
        logit_scale=logit_scale(config),
        entropy=entropy,
        top1=top1,
    )


def _head_weights(head: Untyped) -> tuple[torch.Tensor, torch.Tensor | None, TrainedRows | None]:
    """Weight [V, H], bias [V], and the rows that train in place of the weight's own."""
    if has_token_rows(head):
        base, rows = head.token_adapter.get_base_layer(), trained_rows(head.token_adapter)
        if rows is not None and not base.weight.requires_grad:
            return base.weight, None, rows  # PEFT leaves a bias out as well
    return head.weight, head.bias, None


class _Scatter(torch.autograd.Function):
    """values [N] at flat `places` of a tensor of `shape`, zero elsewhere.

    The gradient of a sum is one number everywhere, and stays one number here: the head's gradient
    need not ask the device whether its rows weigh the same.
    """

    @staticmethod
    def forward(
        ctx: Untyped, values: torch.Tensor, places: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        ctx.save_for_backward(places)
        return values.new_zeros(shape.numel()).index_copy_(0, places, values).view(shape)

    @staticmethod
    def backward(ctx: Untyped, upstream: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (places,) = ctx.saved_tensors
        if upstream.numel() and not any(upstream.stride()):
            return upstream[0, 0].expand(len(places)), None, None
        return upstream.flatten().index_select(0, places), None, None

"""Loss head that computes log-probs only for labelled tokens.

The loss head replaces the forward that TRL's `add_fused_lm_head` sets on a causal language model.
Our loss head keeps the arguments and result fields of the stock head. If the batch's layout has
`scored` (`ScoredTokens`), the loss head needs no labels, and its result fields have one dimension,
[N].
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
from .trl_compat import FusedCausalLMOutput, load_balancing_loss, logit_scale

Untyped = Any  # Any: transformers and TRL are not typed
_IGNORED = -100
_patched: WeakSet[torch.nn.Module] = WeakSet()


def computes_scored_tokens(model: torch.nn.Module) -> None:
    """Record that the model's forward can score the tokens in `BatchLayout.scored`."""
    _patched.add(model)


def is_head_patched(model: torch.nn.Module) -> bool:
    """Return True if this causal language model can score the tokens in `BatchLayout.scored`."""
    return model in _patched


class HeadPatch:
    def __init__(self, model: Untyped) -> None:
        """`model`: a causal language model with TRL's fused head (`add_fused_lm_head`)."""
        self._model = model
        self._stock = vars(model).get("forward")
        stock = model.forward

        @functools.wraps(type(model).forward)  # `generate` reads this signature
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
            shifted = kwargs.get("shift_labels") is not None
            if not fused_lm_head or labels is None or shifted:
                if labels is not None:
                    kwargs["labels"] = labels
                return stock(*args, fused_lm_head=fused_lm_head, **kwargs)
            return _score(this, labels, *args, **kwargs)

        model.forward = types.MethodType(forward, model)
        computes_scored_tokens(model)

    def undo(self) -> None:
        _patched.discard(self._model)
        if self._stock is None:
            self._model.__dict__.pop("forward", None)
        else:
            self._model.forward = self._stock


def _score(
    model: Untyped,
    labels: torch.Tensor,
    *args: Untyped,
    num_items_in_batch: torch.Tensor | int | None = None,
    **kwargs: Untyped,
) -> FusedCausalLMOutput:
    """Compute the log-probs of labels [B, T].

    Result fields with a value for each token have shape [B, T - 1]; a position without a label has
    the value 0."""
    kwargs["use_cache"] = False
    config = model.config.get_text_config()
    if getattr(config, "output_router_logits", False):
        kwargs.setdefault("output_router_logits", True)
    outputs = model.base_model(*args, **kwargs)
    hidden = outputs.last_hidden_state
    mask = labels[:, 1:] != _IGNORED
    layout = current_layout()
    indices = None if layout is None else layout.labelled
    if indices is None:
        indices = mask.flatten().nonzero()[:, 0]
    sources = indices + indices // max(1, mask.shape[1])  # flat indices into [B, T]
    targets = labels.flatten().index_select(0, sources + 1)
    scored = _log_probs(model, hidden, sources, targets, entropy=True, top1=True)

    def scatter(values: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = _Scatter.apply(values, indices, mask.shape)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return rows

    log_probs = scatter(scored.log_probs)
    entropy = None if scored.entropy is None else scatter(scored.entropy)
    is_top1 = None if scored.is_top1 is None else scatter(scored.is_top1)
    count = mask.sum().clamp(min=1) if num_items_in_batch is None else num_items_in_batch
    loss = -log_probs.sum() / count
    aux_loss = None
    if kwargs.get("output_router_logits"):
        aux_loss = load_balancing_loss(config, outputs.router_logits, kwargs.get("attention_mask"))
        loss = loss + getattr(config, "router_aux_loss_coef", 0.0) * aux_loss
    return FusedCausalLMOutput(
        loss=loss,
        log_probs=log_probs,
        entropy=entropy,
        is_top1=is_top1,
        label_mask=mask,
        aux_loss=aux_loss,
    )


def _score_flat(
    model: Untyped, scored: ScoredTokens, *args: Untyped, **kwargs: Untyped
) -> FusedCausalLMOutput:
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
    """Compute the log-probs of tokens `targets` [N].

    `sources` [N]: flat index of each token's hidden state in `hidden` [B, T, H]."""
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
    """Return the weight [V, H], the bias [V], and trained rows that replace rows of the weight."""
    if has_token_rows(head):
        base, rows = head.token_adapter.get_base_layer(), trained_rows(head.token_adapter)
        if rows is not None and not base.weight.requires_grad:
            return base.weight, None, rows  # PEFT ignores the head's bias too
    return head.weight, head.bias, None


class _Scatter(torch.autograd.Function):
    """Scatter values [N] to flat `indices` of a zero tensor of `shape`.

    If the loss is a sum, all elements of the upstream gradient are equal: torch passes one number,
    expanded to `shape`. In this case, backward also returns one expanded number. Its strides show
    the kernels that all tokens have the same weight, so the host does not have to read the gradient
    from the device.
    """

    @staticmethod
    def forward(
        ctx: Untyped, values: torch.Tensor, indices: torch.Tensor, shape: torch.Size
    ) -> torch.Tensor:
        ctx.save_for_backward(indices)
        return values.new_zeros(shape.numel()).index_copy_(0, indices, values).view(shape)

    @staticmethod
    def backward(ctx: Untyped, upstream: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (indices,) = ctx.saved_tensors
        if upstream.numel() and not any(upstream.stride()):
            return upstream[0, 0].expand(len(indices)), None, None
        return upstream.flatten().index_select(0, indices), None, None

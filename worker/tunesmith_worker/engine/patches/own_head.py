"""Loss from the model's own logits, for models whose logits TRL's fused head does not compute.

TRL's fused head multiplies the backbone's last hidden state by the head's weight. For models that
compute their logits in another way, TRL's fused head would compute a wrong loss. BERT transforms
the hidden state first, and Llama 4 has no separate backbone. RecurrentGemma and xLSTM cap the
logits, and TRL does not read the names of their cap settings.

`check_head` compares the log-probs of TRL's fused head with the log-probs of the model's own logits
on a few tokens. `check_head` also checks that the model is causal.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import log_softmax

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError, error_text, is_out_of_memory

from .batch_layout import ScoredTokens, current_layout
from .families import is_known_model
from .head import computes_scored_tokens
from .trl_compat import FusedCausalLMOutput

Untyped = Any  # Any: transformers and TRL are not typed

_IGNORED = -100
_TOKENS = 16
_LIMITS = {True: 1e-5, False: 2e-2}
"""Largest accepted relative difference (RMS) between the log-probs of TRL's fused head and the
log-probs of the model's own logits. The key is True for fp32."""


def check_head(causal: Untyped) -> str | None:
    """Return why TRL's fused head computes wrong log-probs for this model; None if they are right.

    `causal`: a causal language model, without PEFT's wrapper, that has TRL's fused head. Raises
    RunError if a logit depends on later tokens. Families with our kernels are not checked."""
    if is_known_model(causal):
        return None
    ids = sample_ids(causal)
    changed = ids.clone()
    changed[0, -1] = ids[0, 0]
    limit = _LIMITS[causal.dtype == torch.float32]
    with _evaluating(causal):
        own = own_output(causal, input_ids=ids)
        later = own_output(causal, input_ids=changed)
        _check_causal(causal, own.logits[:, :-1], later.logits[:, :-1], limit)
        expected = _score(own, ids, None)
        try:
            fused = causal(input_ids=ids, labels=ids, use_cache=False, fused_lm_head=True)
        except Exception as error:  # any model code may fail here
            if is_out_of_memory(error):
                raise
            return f"TRL's fused head fails with {type(error).__name__}: {error_text(error)}"
    difference = _difference(fused.log_probs, expected.log_probs)
    if difference <= limit:
        return None
    return (
        f"the log-probs of TRL's fused head differ by {difference:.1e} from the log-probs of the "
        "model's own logits"
    )


def use_own_head(causal: Untyped) -> str | None:
    """Replace TRL's fused head by the model's own forward if `check_head` finds a difference.

    Returns the difference, or None."""
    reason = check_head(causal)
    if reason is not None:
        OwnHead(causal)
    return reason


class OwnHead:
    """Replaces TRL's fused head by the model's own forward."""

    def __init__(self, causal: Untyped) -> None:
        stock = causal.forward

        @functools.wraps(type(causal).forward)
        def forward(
            this: Untyped,
            *args: Untyped,
            fused_lm_head: bool = False,
            labels: torch.Tensor | None = None,
            num_items_in_batch: torch.Tensor | int | None = None,
            **kwargs: Untyped,
        ) -> Untyped:
            layout = current_layout()
            if fused_lm_head and layout is not None and layout.scored is not None:
                return _score_flat(own_output(this, *args, **kwargs), layout.scored)
            if not fused_lm_head or labels is None:
                if labels is not None:
                    kwargs |= {"labels": labels, "num_items_in_batch": num_items_in_batch}
                return stock(*args, fused_lm_head=fused_lm_head, **kwargs)
            result = _score(own_output(this, *args, **kwargs), labels, num_items_in_batch)
            if kwargs.get("output_router_logits") and result.aux_loss is None:
                result.aux_loss = result.loss.new_zeros(())  # Llama 4 does not return it
            return result

        causal.forward = types.MethodType(forward, causal)
        computes_scored_tokens(causal)


def own_output(causal: Untyped, *args: Untyped, **kwargs: Untyped) -> Untyped:
    """Run the forward of the model's class, without a cache and without TRL's head."""
    kwargs["use_cache"] = False
    # The class's forward: TRL's fused head is an attribute of the instance.
    return type(causal).forward(causal, *args, **kwargs)


def _score(
    output: Untyped, labels: torch.Tensor, count: torch.Tensor | int | None
) -> FusedCausalLMOutput:
    """Return the result that TRL's fused head would return for labels [B, T], computed from the
    model's own logits [B, T, V]."""
    mask = labels[:, 1:] != _IGNORED
    targets = labels[:, 1:][mask]
    logits = output.logits[:, :-1][mask].float()
    log_probs = log_softmax(logits, dim=-1)
    of_targets = log_probs.gather(1, targets[:, None])[:, 0]
    with torch.no_grad():
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        is_top1 = (logits.argmax(-1) == targets).to(logits.dtype)

    def full(values: torch.Tensor) -> torch.Tensor:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    of_tokens = full(of_targets)
    total = mask.sum().clamp(min=1) if count is None else count
    return FusedCausalLMOutput(
        loss=-of_tokens.sum() / total,
        log_probs=of_tokens,
        entropy=full(entropy),
        is_top1=full(is_top1),
        label_mask=mask,
        aux_loss=getattr(output, "aux_loss", None),
    )


def _score_flat(output: Untyped, scored: ScoredTokens) -> FusedCausalLMOutput:
    logits = output.logits.flatten(0, 1).index_select(0, scored.sources).float()
    log_probs = log_softmax(logits / scored.temperature, dim=-1)
    entropy = None
    if scored.entropy:
        with torch.set_grad_enabled(scored.entropy == "grad" and torch.is_grad_enabled()):
            entropy = -(log_probs.exp() * log_probs).sum(-1)
    of_targets = log_probs.gather(1, scored.targets[:, None])[:, 0]
    return FusedCausalLMOutput(log_probs=of_targets, entropy=entropy)


def _check_causal(
    causal: Untyped, logits: torch.Tensor, with_other_end: torch.Tensor, limit: float
) -> None:
    difference = _difference(with_other_end, logits)
    if difference <= limit:
        return
    name = type(causal).__name__
    raise RunError(
        ErrorCode.MODEL_NOT_USABLE,
        f"{name} is not a causal language model: if the last token changes, the logits of earlier "
        f"tokens change by {difference:.1e} (relative), so the loss would be low without learning.",
        hint="Set is_decoder=true in the model's config.json if the architecture has this setting "
        "(BERT, XLM); else use another model.",
        param="model",
    )


def sample_ids(causal: Untyped) -> torch.Tensor:
    """Return token ids [1, T], evenly spaced over the vocabulary."""
    rows = int(causal.get_input_embeddings().weight.shape[0])
    step = max(1, rows // (_TOKENS + 1))
    ids = torch.arange(1, _TOKENS + 1, device=causal.device) * step % rows
    return ids[None]


def _difference(actual: torch.Tensor, truth: torch.Tensor) -> float:
    error = (actual.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30)
    return float(error)


@contextmanager
def _evaluating(causal: torch.nn.Module) -> Iterator[None]:
    was_training = causal.training
    causal.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        causal.train(was_training)

"""Compute the distribution of the next token, and sample the token.

The distribution of the next token is the same as in transformers. Penalties and filters apply in
transformers' order: penalties, temperature, top-k, top-p, min-p. transformers has no presence and
frequency penalties; these are the same as in vLLM. Sampling inverts the cumulative distribution
with one uniform
random number u per token: the sampled token is the first i with `p_0 + ... + p_i > u`.

The numbers u come from numpy's Philox generator (Salmon et al.,
https://doi.org/10.1145/2063384.2063405) and depend only on the request's seed and the token's
index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from .protocol import NotFinite, SamplingParams

Untyped = Any  # Any: transformers is not typed

_BLOCK = 256
"""Number of uniform random numbers generated at a time."""
_TOKENS = 128
"""Number of tokens per block of the vocabulary."""


class Uniforms:
    """Uniform random numbers in [0, 1) of one request."""

    def __init__(self, seed: int) -> None:
        # Use an array, because numpy converts a list of large integers through floats.
        key = np.array([seed, 0], dtype=np.uint64)
        self._draw = np.random.Generator(np.random.Philox(key=key)).random
        self._known: list[float] = []

    def __getitem__(self, index: int) -> float:
        while len(self._known) <= index:
            self._known += self._draw(_BLOCK).tolist()
        return self._known[index]


class PenaltyState:
    """Token counts of one row, which determine its penalties."""

    def __init__(self, prompt_ids: Sequence[int], vocabulary: int, device: torch.device) -> None:
        self.counts = torch.zeros(vocabulary, device=device)
        """Number of occurrences of each token in the completion: [V]."""
        self.prompt = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        """True for tokens of the prompt: [V]."""
        self.prompt[torch.tensor(prompt_ids, device=device)] = True

    def add(self, token: int) -> None:
        self.counts[token] += 1.0


@dataclass(frozen=True)
class SampledTokens:
    tokens: list[int]
    sampling_logprobs: list[float]
    policy_logprobs: list[float]


def sample(
    logits: torch.Tensor,
    params: SamplingParams,
    uniforms: Sequence[float],
    penalty_states: Sequence[PenaltyState],
) -> SampledTokens:
    """Sample one token per row.

    `logits` [B, V] in fp32 may be overwritten. `uniforms` has one random number per row.
    `penalty_states` has one state per row if `params` has penalties."""
    scores = logits if not params.has_penalties else apply_penalties(logits, params, penalty_states)
    if params.temperature == 0.0:
        tokens = scores.argmax(-1)
        policy = _log_probs(logits, tokens)
        _check_finite(policy)
        return SampledTokens(tokens.tolist(), [0.0] * len(tokens), policy.tolist())
    if params.has_filters:
        scores = apply_filters(scores, params)
    elif params.temperature != 1.0:
        scores = scores / params.temperature
    probabilities = torch.softmax(scores, -1)
    u = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    tokens = _invert_cdf(probabilities, u)
    sampling = probabilities.gather(1, tokens).log()[:, 0]
    tokens = tokens[:, 0]
    if params.has_filters or params.has_penalties:
        policy = _log_probs(logits / params.temperature, tokens)
    else:
        policy = sampling
    packed = torch.stack([tokens.double(), sampling.double(), policy.double()]).tolist()
    return SampledTokens([int(token) for token in packed[0]], packed[1], packed[2])


def _invert_cdf(probabilities: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Sample one token per row from `probabilities` [B, V] and uniform random numbers u [B, 1].

    Returns token ids [B, 1]. A token with probability 0 is never sampled.

    The search first finds the block that contains the sampled token, then the token within the
    block. Sums of blocks take much less time than a cumulative sum over the whole vocabulary."""
    short = -probabilities.shape[1] % _TOKENS
    padded = torch.nn.functional.pad(probabilities, (0, short)) if short else probabilities
    blocks = padded.view(len(padded), -1, _TOKENS)
    ends = blocks.sum(-1).cumsum(-1)
    total = ends[:, -1:]
    _check_finite(total)
    target = _clamp_below((u * total).to(total.dtype), total)
    block = torch.searchsorted(ends, target, right=True)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _TOKENS))[:, 0].cumsum(-1)
    before = torch.nn.functional.pad(ends, (1, 0)).gather(1, block)
    offset = torch.searchsorted(inside, _clamp_below(target - before, inside[:, -1:]), right=True)
    return block * _TOKENS + offset


def _clamp_below(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Limit x to the largest number below `limit`.

    If rounding made x equal to `limit`, a token with probability 0 would be selected."""
    return torch.minimum(x, limit.nextafter(torch.zeros_like(limit)))


def apply_penalties(
    logits: torch.Tensor, params: SamplingParams, penalty_states: Sequence[PenaltyState]
) -> torch.Tensor:
    counts = torch.stack([state.counts for state in penalty_states])
    generated = counts > 0
    if params.repetition_penalty != 1.0:
        known = generated | torch.stack([state.prompt for state in penalty_states])
        penalty = params.repetition_penalty
        changed = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(known, changed, logits)
    logits = logits - params.frequency_penalty * counts
    return logits - params.presence_penalty * generated


def apply_filters(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Apply temperature, top-k, top-p and min-p; return [B, V] with -inf for removed tokens."""
    ids: Untyped = None  # temperature, top-k, top-p and min-p do not read the previous tokens
    for processor in _processors(params):
        scores = processor(ids, scores)
    return scores


def _processors(params: SamplingParams) -> list[Untyped]:
    processors: list[Untyped] = []
    if params.temperature != 1.0:
        processors.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k > 0:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        processors.append(MinPLogitsWarper(params.min_p))
    return processors


def _check_finite(per_row: torch.Tensor) -> None:
    if not bool(per_row.isfinite().all()):
        raise NotFinite(
            "the model's logits are not finite: check its weights for NaN, and the loss and "
            "gradient norm of the last training steps"
        )


def _log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)

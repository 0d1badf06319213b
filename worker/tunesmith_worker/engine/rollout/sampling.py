"""The law that a token is drawn from, and the draw.

The law is transformers', by its own processors and in its order (penalties, temperature, top-k,
top-p, min-p); presence and frequency penalty, which it lacks, are vLLM's. The draw inverts the
cumulative distribution with one uniform number a token:

    token = the first i with  sum of p_j over j <= i  >  u

so a row needs no more randomness than u, and u depends on the request's seed and the token's place
alone: Philox counters (Salmon et al., https://doi.org/10.1145/2063384.2063405), by numpy.
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
"""Uniform numbers are drawn so many at a time."""
_TOKENS = 128
"""Of a block of the vocabulary."""


class Uniforms:
    """u_0, u_1, ... in [0, 1) of one request."""

    def __init__(self, seed: int) -> None:
        # An array: numpy takes a list of large numbers by way of floats.
        key = np.array([seed, 0], dtype=np.uint64)
        self._draw = np.random.Generator(np.random.Philox(key=key)).random
        self._known: list[float] = []

    def __getitem__(self, place: int) -> float:
        while len(self._known) <= place:
            self._known += self._draw(_BLOCK).tolist()
        return self._known[place]


class PenaltyState:
    """What a row's penalties are about."""

    def __init__(self, prompt_ids: Sequence[int], vocabulary: int, device: torch.device) -> None:
        self.counts = torch.zeros(vocabulary, device=device)
        """[V]: how often each token is in the completion."""
        self.prompt = torch.zeros(vocabulary, dtype=torch.bool, device=device)
        """[V]: whether it is in the prompt."""
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
    """logits [B, V] fp32, which may be overwritten; one number and (where `params` penalises) one
    `PenaltyState` a row."""
    scores = logits if not params.has_penalties else apply_penalties(logits, params, penalty_states)
    if params.temperature == 0.0:
        tokens = scores.argmax(-1)
        own = _log_probs(logits, tokens)
        _check(own)
        return SampledTokens(tokens.tolist(), [0.0] * len(tokens), own.tolist())
    if params.has_filters:
        scores = apply_filters(scores, params)
    elif params.temperature != 1.0:
        scores = scores / params.temperature
    probabilities = torch.softmax(scores, -1)
    u = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None]
    tokens = _inverted(probabilities, u)
    sampling = probabilities.gather(1, tokens).log()[:, 0]
    tokens = tokens[:, 0]
    if params.has_filters or params.has_penalties:
        policy = _log_probs(logits / params.temperature, tokens)
    else:
        policy = sampling
    packed = torch.stack([tokens.double(), sampling.double(), policy.double()]).tolist()
    return SampledTokens([int(one) for one in packed[0]], packed[1], packed[2])


def _inverted(probabilities: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """The draw, probabilities [B, V] and u [B, 1]: tokens [B, 1], none of probability 0.

    First the block of tokens, then the token in it: a sum over all tokens is many times as fast as
    a running sum over all of them."""
    short = -probabilities.shape[1] % _TOKENS
    padded = torch.nn.functional.pad(probabilities, (0, short)) if short else probabilities
    blocks = padded.view(len(padded), -1, _TOKENS)
    ends = blocks.sum(-1).cumsum(-1)
    total = ends[:, -1:]
    _check(total)
    target = _below((u * total).to(total.dtype), total)
    block = torch.searchsorted(ends, target, right=True)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _TOKENS))[:, 0].cumsum(-1)
    before = torch.nn.functional.pad(ends, (1, 0)).gather(1, block)
    place = torch.searchsorted(inside, _below(target - before, inside[:, -1:]), right=True)
    return block * _TOKENS + place


def _below(x: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Also after rounding: a token of probability 0 is then never the first above it."""
    return torch.minimum(x, limit.nextafter(torch.zeros_like(limit)))


def sampling_distribution(
    logits: torch.Tensor, params: SamplingParams, penalty_states: Sequence[PenaltyState] = ()
) -> torch.Tensor:
    """log p of every token, [B, V]; -inf for those left out. Temperature above 0."""
    scores = logits if not params.has_penalties else apply_penalties(logits, params, penalty_states)
    return torch.log_softmax(apply_filters(scores, params), -1)


def apply_penalties(
    logits: torch.Tensor, params: SamplingParams, penalty_states: Sequence[PenaltyState]
) -> torch.Tensor:
    counts = torch.stack([one.counts for one in penalty_states])
    drawn = counts > 0
    if params.repetition_penalty != 1.0:
        known = drawn | torch.stack([one.prompt for one in penalty_states])
        penalty = params.repetition_penalty
        changed = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(known, changed, logits)
    logits = logits - params.frequency_penalty * counts
    return logits - params.presence_penalty * drawn


def apply_filters(scores: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Temperature and filters: [B, V], -inf for what is left out."""
    ids: Untyped = None  # these processors do not look at the tokens so far
    for processor in _processors(params):
        scores = processor(ids, scores)
    return scores


def _processors(params: SamplingParams) -> list[Untyped]:
    found: list[Untyped] = []
    if params.temperature != 1.0:
        found.append(TemperatureLogitsWarper(float(params.temperature)))
    if params.top_k > 0:
        found.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        found.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0.0:
        found.append(MinPLogitsWarper(params.min_p))
    return found


def _check(one_a_row: torch.Tensor) -> None:
    if not bool(one_a_row.isfinite().all()):
        raise NotFinite(
            "the model's logits are not finite: look for NaN in its weights, and at the loss and "
            "gradient norm of the last steps"
        )


def _log_probs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """[B]"""
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)

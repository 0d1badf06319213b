"""Check that sampled tokens come from the distribution of the recipe's sampling parameters.

The engine samples by the inverse cumulative distribution, with one random number per token from the
request's seed (engine/rollout/sampling.py). The check repeats the sampling with the same random
numbers and the probabilities of stock transformers. The engine's tokens must equal the repeated
tokens, so no statistical test is needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tunesmith_worker.engine.rollout import SamplingParams
from tunesmith_worker.engine.rollout.sampling import Uniforms
from tunesmith_worker.engine.scientific import scientific

from .check_context import ReinforcementContext
from .findings import Outcome, make_outcome, not_applicable
from .parity import Limits
from .reference_scores import Generated, GeneratedRow
from .rollout_parity import TEMPERATURES, fault

NAME = "sampling_distribution"
BORDER = 0.05
"""Share of tokens that may differ with top-k, top-p or min-p, because rounding may move a token
across the filter's border."""


def check_sampling_distribution(
    context: ReinforcementContext,
    generated: Generated,
    logits: Sequence[torch.Tensor],
    limits: Limits,
) -> Outcome:
    """Check `sampling_distribution`. `logits`: the stock model's logits, one tensor [completion
    tokens, vocabulary] for each row."""
    if not context.engine.samples_from_uniforms:
        return not_applicable(NAME, f"the random numbers of {context.engine.name} are not known")
    if not limits.single:
        return not_applicable(NAME, "rounding to 16 bits changes tokens")
    sampled = [
        (row, scores)
        for row, scores in zip(generated.rows, logits, strict=True)
        if row.request.sampling.temperature > 0
    ]
    sampling = context.sampling
    fit = _fit(sampled, sampling, limits)
    findings = []
    if not fit.is_good:
        matching = [t for t in TEMPERATURES if _fit(sampled, _at(sampling, t), limits).tokens_match]
        cause = f" The tokens match temperature {matching[0]:g}." if matching else ""
        findings.append(
            fault(
                NAME,
                f"{fit.wrong} of {fit.tokens} tokens do not come from the requested distribution "
                f"at temperature {sampling.temperature:g}: the random number is up to "
                f"{scientific(fit.token_distance)} outside the token's interval of cumulative "
                f"probability. The engine's log-probs are wrong by up to "
                f"{scientific(fit.log_prob_distance)} (tolerance {limits.log_prob:.0e}).{cause}",
            )
        )
    return make_outcome(NAME, findings, f"{fit.tokens} tokens match their random numbers")


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Agreement of sampled tokens with a distribution. Distances are in units of probability."""

    tokens: int
    wrong_tokens: int
    """Number of sampled tokens other than the token that the random number selects."""
    wrong: int
    """Number of sampled tokens that are wrong, or whose log-probability is wrong."""
    token_distance: float
    """Largest distance of a random number from the sampled token's interval of cumulative
    probability."""
    log_prob_distance: float
    """Largest error of a reported log-probability: absolute below 1 nat, relative above 1 nat."""
    allowed: float
    """Number of wrong tokens that rounding may cause; more wrong tokens are a fault."""

    @property
    def is_good(self) -> bool:
        return self.wrong <= self.allowed

    @property
    def tokens_match(self) -> bool:
        return self.wrong_tokens <= self.allowed


def _fit(
    sampled: Sequence[tuple[GeneratedRow, torch.Tensor]], sampling: SamplingParams, limits: Limits
) -> _Fit:
    both = [_distances(row, logits, sampling) for row, logits in sampled]
    token, log_prob = (
        torch.cat(parts).nan_to_num(nan=math.inf) for parts in zip(*both, strict=True)
    )
    far = token > limits.log_prob
    return _Fit(
        tokens=len(token),
        wrong_tokens=int(far.sum()),
        wrong=int((far | (log_prob > limits.log_prob)).sum()),
        token_distance=float(token.max()),
        log_prob_distance=float(log_prob.max()),
        allowed=BORDER * len(token) if sampling.has_filters else 0.0,
    )


def _at(sampling: SamplingParams, temperature: float) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
    )


def _distances(
    row: GeneratedRow, logits: torch.Tensor, sampling: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors [C]: for each token, the distance of the random number from the token's
    interval of cumulative probability, and the error of the log-prob.
    """
    probabilities = _probabilities(logits.double(), sampling)
    ids = torch.tensor(row.completion.token_ids, device=logits.device)[:, None]
    own = probabilities.gather(1, ids)[:, 0].cpu()
    above = probabilities.cumsum(-1).gather(1, ids)[:, 0].cpu()
    uniforms = Uniforms(row.request.seed)
    u = torch.tensor([uniforms[i] for i in range(len(own))], dtype=torch.float64)
    distance = torch.maximum(above - own - u, u - above).clamp(min=0.0)
    reported = torch.tensor(row.completion.sampling_logprobs, dtype=torch.float64)
    return distance, (reported - own.log()).abs() / own.log().abs().clamp(min=1.0)


def _probabilities(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    """Return the probabilities [C, V] after temperature, top-k, top-p and min-p, in this order.

    Sources: https://arxiv.org/abs/1904.09751 and https://arxiv.org/abs/2407.01082.
    """
    scores = logits / sampling.temperature
    if sampling.top_k > 0:
        least = scores.topk(min(sampling.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if sampling.top_p < 1.0:
        probabilities, order = scores.softmax(-1).sort(-1)
        tail = probabilities.cumsum(-1) <= 1.0 - sampling.top_p
        tail[:, -1] = False
        scores = scores.masked_fill(tail.gather(1, order.argsort(-1)), -math.inf)
    if sampling.min_p > 0.0:
        probabilities = scores.softmax(-1)
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < least, -math.inf)
    return scores.softmax(-1)

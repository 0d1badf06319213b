"""Whether tokens are drawn from the law that the recipe names.

The engine inverts the cumulative distribution with one number u a token
(engine/rollout/sampling.py), and
u goes by the request's seed: so each drawn token can be held to stock transformers' probabilities,
and no statistics are needed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tunesmith_worker.engine.rollout import NativeEngine, SamplingParams
from tunesmith_worker.engine.rollout.sampling import Uniforms

from .check_context import ReinforcementSubject
from .findings import Outcome, judged, not_applicable
from .parity import Limits
from .reference_scores import Drawn, Draws
from .rollout_parity import fault

NAME = "sampling_law"
_TEMPERATURES = [round(0.1 * i, 1) for i in range(1, 31)]
"""That are tried to name the fault."""
BORDER = 0.05
"""Share of tokens where a filter may leave another token out: rounding decides at its border."""


def check_law(
    subject: ReinforcementSubject,
    draws: Draws,
    logits: Sequence[torch.Tensor],
    limits: Limits,
) -> Outcome:
    """`sampling_law`: `logits` [C, V] of each row, stock's. Distances are of probabilities."""
    if not isinstance(subject.engine, NativeEngine):
        return not_applicable(NAME, "another engine draws in its own way")
    if not limits.single:
        return not_applicable(NAME, "rounding to 16 bits moves tokens")
    sampled = [
        (one, scores)
        for one, scores in zip(draws.rows, logits, strict=True)
        if one.request.sampling.temperature > 0
    ]
    law = subject.sampling
    found = _judged(sampled, law, limits)
    findings = []
    if not found.fits:
        other = [one for one in _TEMPERATURES if _judged(sampled, _at(law, one), limits).drawn_so]
        as_at = f" They are drawn as at temperature {other[0]:g}." if other else ""
        findings.append(
            fault(
                NAME,
                f"{found.off} of {found.tokens} tokens are not from the law at temperature "
                f"{law.temperature:g} that was asked for: up to {found.drawn:.1e} away from their "
                f"random number, and {found.told:.1e} from the log-probability that the engine "
                f"says (tolerance {limits.log_prob:.0e}).{as_at}",
            )
        )
    return judged(NAME, findings, f"{found.tokens} tokens are those of their random numbers")


@dataclass(frozen=True, kw_only=True)
class _Judged:
    tokens: int
    undrawn: int
    """Tokens that do not lie at their random number."""
    off: int
    """Those, and the ones whose log-probability is another."""
    drawn: float
    """The largest distance of a token from its random number."""
    told: float
    """Of its log-probability from what the engine says, in units of max(1, its size)."""
    allowed: float

    @property
    def fits(self) -> bool:
        return self.off <= self.allowed

    @property
    def drawn_so(self) -> bool:
        return self.undrawn <= self.allowed


def _judged(
    sampled: Sequence[tuple[Drawn, torch.Tensor]], law: SamplingParams, limits: Limits
) -> _Judged:
    both = [_distances(one, logits, law) for one, logits in sampled]
    drawn, told = (torch.cat(parts).nan_to_num(nan=math.inf) for parts in zip(*both, strict=True))
    far = drawn > limits.log_prob
    return _Judged(
        tokens=len(drawn),
        undrawn=int(far.sum()),
        off=int((far | (told > limits.log_prob)).sum()),
        drawn=float(drawn.max()),
        told=float(told.max()),
        allowed=BORDER * len(drawn) if law.has_filters else 0.0,
    )


def _at(law: SamplingParams, temperature: float) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, top_k=law.top_k, top_p=law.top_p, min_p=law.min_p
    )


def _distances(
    one: Drawn, logits: torch.Tensor, law: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """[C] each: of its tokens from their random numbers, and of their log-probabilities."""
    probabilities = _probabilities(logits.double(), law)
    ids = torch.tensor(one.completion.token_ids, device=logits.device)[:, None]
    own = probabilities.gather(1, ids)[:, 0].cpu()
    above = probabilities.cumsum(-1).gather(1, ids)[:, 0].cpu()
    uniforms = Uniforms(one.request.seed)
    u = torch.tensor([uniforms[i] for i in range(len(own))], dtype=torch.float64)
    drawn = torch.maximum(above - own - u, u - above).clamp(min=0.0)
    said = torch.tensor(one.completion.sampling_logprobs, dtype=torch.float64)
    return drawn, (said - own.log()).abs() / own.log().abs().clamp(min=1.0)


def _probabilities(logits: torch.Tensor, law: SamplingParams) -> torch.Tensor:
    """[C, V]: temperature, then top-k, top-p and min-p, each of what the one before has left
    (https://arxiv.org/abs/1904.09751, https://arxiv.org/abs/2407.01082). Not the engine's own."""
    scores = logits / law.temperature
    if law.top_k > 0:
        least = scores.topk(min(law.top_k, scores.shape[-1])).values[:, -1:]
        scores = scores.masked_fill(scores < least, -math.inf)
    if law.top_p < 1.0:
        probabilities, order = scores.softmax(-1).sort(-1)
        tail = probabilities.cumsum(-1) <= 1.0 - law.top_p
        tail[:, -1] = False
        scores = scores.masked_fill(tail.gather(1, order.argsort(-1)), -math.inf)
    if law.min_p > 0.0:
        probabilities = scores.softmax(-1)
        least = law.min_p * probabilities.amax(-1, keepdim=True)
        scores = scores.masked_fill(probabilities < least, -math.inf)
    return scores.softmax(-1)

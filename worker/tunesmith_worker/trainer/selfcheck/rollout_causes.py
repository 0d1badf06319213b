"""Why log-probabilities differ: what is suspected is computed by stock transformers, and what
agrees with the wrong numbers is named. Runs only where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import peft
import torch

from .parity import Limits, change
from .passes import adapter_off
from .rollout_drawn import Draws, draw, stock_logits, stock_scores
from .rollout_subject import ReinforcementSubject

_TEMPERATURES = [round(0.1 * i, 1) for i in range(1, 31)]


def cause_of(
    subject: ReinforcementSubject,
    draws: Draws,
    wrong: torch.Tensor,
    logits: Sequence[torch.Tensor],
    limits: Limits,
    *,
    of: str,
) -> str:
    """`wrong` [N]: what was found for `draws`. `logits`: stock's, which is right. `of`: "the
    engine" or "the trainer"."""
    for cause, expected in _suspects(subject, draws, logits):
        if change(wrong, expected, limits) <= limits.log_prob:
            return f"{cause} in {of}"
    if of == "the engine" and _right_without_positions(subject, draws, limits):
        return (
            "wrong positions or attention in the engine (prompts of one token are right, longer "
            "ones are not)"
        )
    return f"other numbers in {of}"


def _suspects(
    subject: ReinforcementSubject, draws: Draws, logits: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(subject.model, peft.PeftModel):
        with adapter_off(subject.model):
            base = stock_scores(subject, draws)
        yield "adapter detached (or a copy of the weights from before it was changed)", base
    for temperature in _TEMPERATURES:
        # Where no row is sampled, or at the right one, this says nothing that was not said.
        yield f"temperature {temperature:g}", draws.at(logits, temperature)
    yield from _other_prompts(subject, draws)


def _other_prompts(
    subject: ReinforcementSubject, draws: Draws
) -> Iterator[tuple[str, torch.Tensor]]:
    """Prompts that are cut to one length, and each row with its neighbour's."""
    prompts = [one.request.prompt_ids for one in draws.rows]
    completions = [one.row[1] for one in draws.rows]
    longest = max(map(len, prompts))
    limits = {len(one) for one in prompts} | {1 << power for power in range(17)}
    for limit in sorted(one for one in limits if one < longest):
        for side, cut in (("start", slice(-limit, None)), ("end", slice(0, limit))):
            rows = [(one[cut], tokens) for one, tokens in zip(prompts, completions, strict=True)]
            scores = draws.at(stock_logits(subject, rows))
            yield f"truncated prompt ({limit} tokens are left, the {side} is cut)", scores


def _right_without_positions(subject: ReinforcementSubject, draws: Draws, limits: Limits) -> bool:
    """A single token sees itself alone: neither positions nor a mask change it."""
    first = draws.rows[0].request
    ids = sorted({one for row in draws.rows for one in row.request.prompt_ids})[:8]
    single = draw(subject, [replace(first, prompt_ids=(one,), max_tokens=1) for one in ids])
    return change(single.policy, stock_scores(subject, single), limits) <= limits.log_prob

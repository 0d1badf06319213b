"""Whether the engine, the training forward and stock transformers give a drawn token the same
log-probability, and whether rows of one batch are as if alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import peft
import torch

from tunesmith_schema import ErrorCategory

from .check_context import ReinforcementSubject
from .findings import Finding, Outcome, judged
from .model_runs import adapter_off
from .parity import FACTOR, FLOOR, Limits, change
from .reference_scores import Draws, draw, stock_logits, stock_scores

ENGINE_HINT = "This is a fault of the rollout engine: report it with the job's events."
TRAINER_HINT = "Set recipe.patches='off' to train on the stock modules, and report this."


def rows_apart(together: Draws, alone: Draws, limits: Limits) -> Outcome:
    """`rollout_rows_apart`: what a prompt gets does not depend on the prompts beside it."""
    name = "rollout_rows_apart"
    ours, single = _common(together, alone, limits)
    apart = change(ours, single, limits)
    findings = []
    if not apart <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"a prompt in a batch of {len(together.rows)} rows gets other completions than "
                f"alone, by {apart:.1e} in a token's log-probability (tolerance "
                f"{limits.log_prob:.0e}): rows see one another, their padding, or a prompt that "
                "is not theirs.",
            )
        )
    return judged(name, findings, f"rows of a batch = alone to {apart:.0e}")


def equals_stock(rollout: torch.Tensor, stock: torch.Tensor, limits: Limits, cause: str) -> Outcome:
    """`rollout_equals_stock`: [N] each. `cause`: told where they differ."""
    name = "rollout_equals_stock"
    apart = change(rollout, stock, limits)
    findings = []
    if not apart <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"{cause}: the engine's log-probabilities of its tokens are {apart:.1e} away from "
                f"stock transformers' (tolerance {limits.log_prob:.0e}).",
            )
        )
    return judged(name, findings, f"rollouts = stock to {apart:.0e} in {len(stock)} log-probs")


def equals_training(
    rollout: torch.Tensor,
    training: torch.Tensor,
    stock: torch.Tensor,
    limits: Limits,
    cause: str,
) -> Outcome:
    """`rollout_equals_training`: the training forward scores drawn tokens as the engine did and as
    stock does. `cause`: told where training is not stock."""
    name = "rollout_equals_training"
    apart, from_stock = (change(training, one, limits) for one in (rollout, stock))
    findings = []
    if not from_stock <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"{cause}: the training forward's log-probabilities of drawn tokens are "
                f"{from_stock:.1e} away from stock transformers' (tolerance "
                f"{limits.log_prob:.0e}), and {apart:.1e} from the engine's.",
                TRAINER_HINT,
                param="recipe.patches",
            )
        )
    elif not apart <= limits.log_prob and change(rollout, stock, limits) <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"the engine's log-probabilities are {apart:.1e} away from the training forward's "
                f"(tolerance {limits.log_prob:.0e}).",
            )
        )
    return judged(name, findings, f"rollouts = training to {apart:.0e}")


def near_in_16_bits(
    rollout: torch.Tensor, training: torch.Tensor, stock: torch.Tensor, truth: torch.Tensor
) -> Outcome:
    """`rollout_in_16_bits`: RMS distances from stock's log-probabilities in fp32, in units of what
    stock's own in 16 bits have."""
    name = "rollout_in_16_bits"
    engine, trainer, floor = (_rms(one, truth) for one in (rollout, training, stock))
    limit = FACTOR * max(floor, FLOOR)
    findings = [
        fault(
            name,
            f"in 16 bits, the {who}'s log-probabilities are {found:.1e} away from fp32's, stock's "
            f"own {floor:.1e} (tolerance {limit:.1e}).",
            hint,
        )
        for who, found, hint in (
            ("engine", engine, ENGINE_HINT),
            ("training forward", trainer, TRAINER_HINT),
        )
        if not found <= limit
    ]
    detail = f"{engine:.1e} from fp32 in rollouts, {trainer:.1e} in training, stock {floor:.1e}"
    return judged(name, findings, detail)


def fault(check: str, message: str, hint: str = ENGINE_HINT, param: str | None = None) -> Finding:
    return Finding(check, message, hint, param=param, category=ErrorCategory.INFRASTRUCTURE)


def _rms(actual: torch.Tensor, truth: torch.Tensor) -> float:
    return float((actual - truth).square().mean().sqrt())


def _common(together: Draws, alone: Draws, limits: Limits) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities up to where tokens part ways. There two greedy ones may be a tie, which
    rounding decides, and sampled ones may lie on either side of their random number."""
    ours: list[float] = []
    single: list[float] = []
    for one, other in zip(together.rows, alone.rows, strict=True):
        a, b = one.completion, other.completion
        pairs = zip(a.token_ids, b.token_ids, strict=False)
        same = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
        tie = one.request.sampling.temperature == 0.0
        stop = len(a.token_ids) if same is None else same + tie
        if same is None and len(a.token_ids) != len(b.token_ids):
            ours, single = [*ours, math.inf], [*single, 0.0]
        ours += a.policy_logprobs[:stop]
        single += b.policy_logprobs[:stop]
    return torch.tensor(ours, dtype=torch.float64), torch.tensor(single, dtype=torch.float64)


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

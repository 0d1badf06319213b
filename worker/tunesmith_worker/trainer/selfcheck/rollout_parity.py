"""Checks that generated tokens have equal log-probs in engine, trainer and stock transformers.

If log-probs differ, `find_cause` imitates suspected faults with stock transformers, and names the
fault that gives the same wrong log-probs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import peft
import torch

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.scientific import scientific

from .check_context import ReinforcementContext
from .findings import Finding, Outcome, make_outcome
from .model_runs import disabled_adapter
from .parity import FACTOR, FLOOR, Limits, change
from .reference_scores import Generated, generate, stock_logits, stock_scores

ENGINE_HINT = "Report the fault with the job's events: the rollout engine has a fault."
TRAINER_HINT = "Set recipe.patches='off' to train on the stock modules, and report the fault."
TEMPERATURES = [round(0.1 * i, 1) for i in range(1, 31)]
"""Temperatures to try when searching for the cause of a fault."""


def compare_rows(together: Generated, alone: Generated, limits: Limits) -> Outcome:
    """Check `rollout_rows_apart`: a prompt's completion does not depend on other prompts."""
    name = "rollout_rows_apart"
    batch_scores, single_scores = _common_scores(together, alone)
    apart = change(batch_scores, single_scores, limits)
    findings = []
    if not apart <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"a token's log-probability changes by {apart:.1e} when its prompt is in a batch "
                f"of {len(together.rows)} rows instead of alone (tolerance "
                f"{limits.log_prob:.0e}): rows attend to other rows, to padding, or to another "
                "prompt.",
            )
        )
    return make_outcome(
        name, findings, f"rows in a batch match single rows within {scientific(apart, 0)}"
    )


def check_equals_stock(
    rollout: torch.Tensor, stock: torch.Tensor, limits: Limits, cause: str
) -> Outcome:
    """Check `rollout_equals_stock` for log-probabilities [N].

    `cause`: fault that `find_cause` named, for the message if the log-probabilities differ."""
    name = "rollout_equals_stock"
    apart = change(rollout, stock, limits)
    findings = []
    if not apart <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"{cause}: the engine's log-probabilities differ from stock transformers by "
                f"{apart:.1e} (tolerance {limits.log_prob:.0e}).",
            )
        )
    detail = (
        f"{len(stock)} log-probs of rollouts match the stock model within {scientific(apart, 0)}"
    )
    return make_outcome(name, findings, detail)


def check_equals_training(
    rollout: torch.Tensor,
    training: torch.Tensor,
    stock: torch.Tensor,
    limits: Limits,
    cause: str,
) -> Outcome:
    """Check `rollout_equals_training`: trainer, engine and stock model give equal log-probs.

    `cause`: fault that `find_cause` named, for the message if trainer and stock model differ.
    """
    name = "rollout_equals_training"
    from_rollout, from_stock = (change(training, scores, limits) for scores in (rollout, stock))
    findings = []
    if not from_stock <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"{cause}: the trainer's log-probabilities of generated tokens differ from stock "
                f"transformers by {from_stock:.1e} (tolerance {limits.log_prob:.0e}), and from "
                f"the engine by {scientific(from_rollout)}.",
                TRAINER_HINT,
                param="recipe.patches",
            )
        )
    elif not from_rollout <= limits.log_prob and change(rollout, stock, limits) <= limits.log_prob:
        findings.append(
            fault(
                name,
                f"the engine's log-probabilities differ from the trainer's by "
                f"{from_rollout:.1e} (tolerance {limits.log_prob:.0e}).",
            )
        )
    return make_outcome(
        name, findings, f"rollouts match training within {scientific(from_rollout, 0)}"
    )


def check_in_16_bits(
    rollout: torch.Tensor, training: torch.Tensor, stock: torch.Tensor, truth: torch.Tensor
) -> Outcome:
    """Check `rollout_in_16_bits`: in 16 bits, the RMS error of the engine's log-probs and of the
    trainer's log-probs is at most FACTOR times the stock model's RMS error. If the stock model's
    error is less than FLOOR, FLOOR is used instead.

    `truth`: log-probs of the stock model in fp32. An error is the difference from `truth`."""
    name = "rollout_in_16_bits"
    engine, trainer, floor = (_rms(scores, truth) for scores in (rollout, training, stock))
    limit = FACTOR * max(floor, FLOOR)
    findings = [
        fault(
            name,
            f"in 16 bits, the {source}'s RMS error in log-probabilities against fp32 is "
            f"{distance:.1e} (tolerance {limit:.1e}; the stock model's error is {floor:.1e}).",
            hint,
        )
        for source, distance, hint in (
            ("engine", engine, ENGINE_HINT),
            ("trainer", trainer, TRAINER_HINT),
        )
        if not distance <= limit
    ]
    detail = (
        f"RMS error against fp32: {scientific(engine)} in rollouts, {scientific(trainer)} in "
        f"training, {scientific(floor)} in the stock model"
    )
    return make_outcome(name, findings, detail)


def fault(check: str, message: str, hint: str = ENGINE_HINT, param: str | None = None) -> Finding:
    return Finding(check, message, hint, param=param, category=ErrorCategory.INFRASTRUCTURE)


def find_cause(
    context: ReinforcementContext,
    generated: Generated,
    wrong: torch.Tensor,
    logits: Sequence[torch.Tensor],
    limits: Limits,
    *,
    source: str,
) -> str:
    """Name the fault that would explain the log-probabilities `wrong` [N].

    `logits`: the correct logits, from the stock model. `source`: origin of `wrong`: "the engine" or
    "the trainer".
    """
    for cause, expected in _suspects(context, generated, logits):
        if change(wrong, expected, limits) <= limits.log_prob:
            return f"{cause} in {source}"
    if source == "the engine" and _single_tokens_are_right(context, generated, limits):
        return (
            "wrong positions or attention in the engine (prompts of one token are right, longer "
            "prompts are wrong)"
        )
    return f"unknown cause in {source}"


def _suspects(
    context: ReinforcementContext, generated: Generated, logits: Sequence[torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the name of each possible fault, and the log-probabilities that this fault would
    cause."""
    if isinstance(context.model, peft.PeftModel):
        with disabled_adapter(context.model):
            base = stock_scores(context, generated)
        yield "adapter not used (or weights copied before the adapter was changed)", base
    for temperature in TEMPERATURES:
        # The right temperature gives right log-probs, so it cannot match wrong log-probs.
        yield f"temperature {temperature:g}", generated.log_probs_at(logits, temperature)
    yield from _truncated_prompts(context, generated)


def _truncated_prompts(
    context: ReinforcementContext, generated: Generated
) -> Iterator[tuple[str, torch.Tensor]]:
    prompts = [row.request.prompt_ids for row in generated.rows]
    completions = [row.row[1] for row in generated.rows]
    longest = max(map(len, prompts))
    lengths = {len(prompt) for prompt in prompts} | {1 << power for power in range(17)}
    for limit in sorted(length for length in lengths if length < longest):
        for side, cut in (("start", slice(-limit, None)), ("end", slice(0, limit))):
            rows = [(ids[cut], tokens) for ids, tokens in zip(prompts, completions, strict=True)]
            scores = generated.log_probs_at(stock_logits(context, rows))
            yield f"truncated prompt ({limit} tokens remain, the {side} is cut)", scores


def _single_tokens_are_right(
    context: ReinforcementContext, generated: Generated, limits: Limits
) -> bool:
    """Return True if prompts of one token, which need no attention, have correct log-probs."""
    first = generated.rows[0].request
    ids = sorted({token for row in generated.rows for token in row.request.prompt_ids})[:8]
    single = generate(context, [replace(first, prompt_ids=(id_,), max_tokens=1) for id_ in ids])
    return change(single.policy, stock_scores(context, single), limits) <= limits.log_prob


def _rms(actual: torch.Tensor, truth: torch.Tensor) -> float:
    return float((actual - truth).square().mean().sqrt())


def _common_scores(together: Generated, alone: Generated) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-probabilities of the same rows, generated together and alone. A row is cut at
    the first token that differs between `together` and `alone`.

    Rounding may change a greedy token if two tokens have almost equal logits. Rounding may change a
    sampled token if the random number lies at the border between two tokens.
    """
    ours: list[float] = []
    single: list[float] = []
    for batch_row, single_row in zip(together.rows, alone.rows, strict=True):
        a, b = batch_row.completion, single_row.completion
        pairs = zip(a.token_ids, b.token_ids, strict=False)
        same = next((i for i, (x, y) in enumerate(pairs) if x != y), None)
        tie = batch_row.request.sampling.temperature == 0.0
        stop = len(a.token_ids) if same is None else same + tie
        if same is None and len(a.token_ids) != len(b.token_ids):
            ours, single = [*ours, math.inf], [*single, 0.0]
        ours += a.policy_logprobs[:stop]
        single += b.policy_logprobs[:stop]
    return torch.tensor(ours, dtype=torch.float64), torch.tensor(single, dtype=torch.float64)

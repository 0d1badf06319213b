"""Checks that compute a step's advantages and rewards again, and name the cause of differences.

Rewards and completions are compared by position: completion i belongs to prompt i, and each group
is `num_generations` adjacent completions of the same prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from tunesmith_worker.trainer.auto.resolve_grpo import GRPOPlan
from tunesmith_worker.trainer.selfcheck.findings import Finding

from .compare import fault

CLOSE = 1e-3
"""Tolerance of an advantage, relative to max(1, |advantage|)."""
REWARD = 1e-6
"""Absolute tolerance of a reward that is graded again."""
SPREAD = 1e-4
"""Constant that GRPO adds to the standard deviation of a group (https://arxiv.org/abs/2402.03300).
"""
Rewards = Sequence[float | None]
"""One reward for each completion; None for a completion without reward."""


def weighted(
    rewards: Sequence[Sequence[float | None]], weights: Sequence[float]
) -> list[float | None]:
    """Return the weighted sum of each completion's rewards; None for a completion without any
    reward."""
    sums: list[float | None] = []
    for row in rewards:
        pairs = zip(weights, row, strict=True)
        known = [weight * one for weight, one in pairs if one is not None and not math.isnan(one)]
        sums.append(math.fsum(known) if known else None)
    return sums


def advantages_of(rewards: Rewards, plan: GRPOPlan) -> list[float]:
    """Return each completion's advantage in its group: (reward - mean) / standard deviation. The
    advantage is 0 for a missing reward, and in groups with equal rewards."""
    batch_spread = _spread([r for r in rewards if r is not None])
    result = []
    for start in range(0, len(rewards), plan.num_generations):
        group = rewards[start : start + plan.num_generations]
        known = [r for r in group if r is not None]
        if len(set(known)) < 2:
            result += [0.0] * len(group)
            continue
        mean = math.fsum(known) / len(known)
        divisor = 1.0
        if plan.scale_rewards != "none":
            divisor = SPREAD + (batch_spread if plan.scale_rewards == "batch" else _spread(known))
        result += [0.0 if r is None else (r - mean) / divisor for r in group]
    return result


def check_advantages(
    rewards: Rewards, actual: Sequence[float], plan: GRPOPlan
) -> Iterator[Finding]:
    """Compare the step's advantages with advantages computed from the recorded rewards."""
    expected, noise = advantages_of(rewards, plan), _rounding(rewards, plan)
    pairs = enumerate(zip(actual, expected, noise, strict=True))
    wrong = [i for i, (a, b, rounding) in pairs if not _close(a, b, rounding)]
    if not wrong:
        return
    first = wrong[0]
    yield fault(
        f"{_advantage_cause(rewards, actual, plan)}: {len(wrong)} of {len(actual)} advantages "
        f"differ from the advantages that the recorded rewards give. Completion {first} has the "
        f"advantage {actual[first]:.4g} instead of {expected[first]:.4g} (tolerance {CLOSE:.0e}).",
        "advantages",
    )


def check_rewards(recorded: Rewards, again: Rewards, generations: int) -> Iterator[Finding]:
    """Compare recorded rewards with `again`, the rewards of a second grading.

    `again` has None for a completion that was not graded again.

    A grader that is not deterministic gives a warning; rewards at wrong positions are an error.
    Positions are checked only if all completions were graded again and not all rewards are
    equal."""
    wrong = [
        i for i, (a, b) in enumerate(zip(recorded, again, strict=True)) if not _same_reward(a, b)
    ]
    if not wrong:
        return
    first = wrong[0]
    text = (
        f"{len(wrong)} of {len(recorded)} completions do not have the reward of their own text. "
        f"Completion {first} has the reward {recorded[first]}, but {again[first]} when it is "
        f"graded again (tolerance {REWARD:.0e})."
    )
    known = {reward for reward in again if _is_known(reward)}
    complete = len(known) > 1 and all(map(_is_known, (*recorded, *again)))
    for cause, moved in _moved(again, generations) if complete else ():
        if all(_same_reward(a, b) for a, b in zip(recorded, moved, strict=True)):
            yield fault(f"{cause}: {text}", "rewards")
            return
    yield Finding(
        "rewards",
        f"the grader is not deterministic, or rewards belong to other completions: {text}",
        "If the grader draws random numbers or depends on time, different rewards are "
        "expected. If the grader is deterministic, report the fault.",
        level="warn",
        param="method.reinforcement.grader",
    )


def check_groups(prompts: Sequence[int], generations: int) -> Iterator[Finding]:
    """Check that each group's completions belong to one prompt. `prompts`: row number of each
    completion's prompt."""
    mixed = [
        start // generations
        for start in range(0, len(prompts), generations)
        if len(set(prompts[start : start + generations])) > 1
    ]
    if mixed:
        yield fault(
            f"transposed groups: {len(mixed)} of {len(prompts) // generations} groups have "
            f"completions of several prompts (tolerance: 0), the first is group {mixed[0]}: "
            "rewards are compared across different prompts.",
            "advantages",
        )


def _advantage_cause(rewards: Rewards, actual: Sequence[float], plan: GRPOPlan) -> str:
    expected = advantages_of(rewards, plan)
    if all(_close(-a, b) for a, b in zip(actual, expected, strict=True)):
        return "flipped sign"
    for cause, moved in _moved(rewards, plan.num_generations):
        if all(_close(a, b) for a, b in zip(actual, advantages_of(moved, plan), strict=True)):
            return cause
    for cause, values in _moved(expected, plan.num_generations):
        if all(_close(a, b or 0.0) for a, b in zip(actual, values, strict=True)):
            return cause.replace("rewards", "advantages")
    return "wrong advantages"


def _moved(values: Rewards, generations: int) -> Iterator[tuple[str, list[float | None]]]:
    count = len(values)
    for shift in range(1, count):
        away = shift if shift <= count // 2 else shift - count
        yield f"rewards shifted by {away}", [*values[-shift:], *values[:-shift]]
    groups = count // generations
    table = [values[g * generations : (g + 1) * generations] for g in range(groups)]
    yield "transposed groups", [table[g][i] for i in range(generations) for g in range(groups)]
    places = [(i % groups) * generations + i // groups for i in range(count)]
    back: list[float | None] = [None] * count
    for place, value in zip(places, values, strict=True):
        back[place] = value
    yield "transposed groups", back


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return float(torch.tensor(values, dtype=torch.float64).std())


def _close(a: float, b: float, rounding: float = 0.0) -> bool:
    return abs(a - b) <= CLOSE * max(1.0, abs(b)) + rounding


def _rounding(rewards: Rewards, plan: GRPOPlan) -> list[float]:
    """Return the possible rounding error of each advantage. The run computes rewards in fp32."""
    known = [abs(r) for r in rewards if r is not None]
    noise = 8 * 2.0**-23 * max(known, default=0.0)
    if plan.scale_rewards == "none":
        return [noise] * len(rewards)
    batch = _spread([r for r in rewards if r is not None])
    result: list[float] = []
    for start in range(0, len(rewards), plan.num_generations):
        group = rewards[start : start + plan.num_generations]
        spread = (
            batch if plan.scale_rewards == "batch" else _spread([r for r in group if r is not None])
        )
        result += [noise / (SPREAD + spread)] * len(group)
    return result


def _same_reward(a: float | None, b: float | None) -> bool:
    if not _is_known(a) or not _is_known(b):
        return True  # a time limit of the grader may depend on the machine's load
    assert a is not None
    assert b is not None
    return abs(a - b) <= REWARD * max(1.0, abs(b))


def _is_known(reward: float | None) -> bool:
    return reward is not None and not math.isnan(reward)

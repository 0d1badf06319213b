"""What a reinforcement run's own figures say of its health, step by step: alarms, each told once.

The bounds of the gap, of equal rewards and of truncated completions are those that practice has
(docs/explanation/self-check.md); those of entropy, KL and clipping are ours. Plain numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from tunesmith_schema import Precision

GAP = {"fp32": 0.01}
GAP_16_BITS = 0.1
"""Mean |log-prob when drawn - in training|, nats a token. Rounding to fp32 gives 1e-6, to 16 bits
1e-3 to 2e-2."""
EQUAL_REWARDS = 0.8
TRUNCATED = 0.3
CLIPPED = 0.3
KL = 1.0
"""Nats a token."""
ENTROPY = 0.1
"""Of what it was in the first steps."""
FIRST, FEW, MANY = 5, 3, 10
"""Steps that entropy is measured over at first, and steps in a row that an alarm waits for."""


_EQUAL_REWARDS = (
    "nothing is learned from them. The grader gives every completion the same, or the task is too "
    "hard or too easy: look at the job's samples."
)


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Of one optimiser step; None: not measured. Names as in the job's metrics."""

    step: int
    rollout_gap: float | None = None
    frac_reward_zero_std: float | None = None
    truncated_share: float | None = None
    entropy: float | None = None
    kl: float | None = None
    clip_ratio: float | None = None


class RolloutTripwires:
    def __init__(self, precision: Precision) -> None:
        self._gap = GAP.get(precision, GAP_16_BITS)
        self._told: set[str] = set()
        self._in_a_row: dict[str, int] = {}
        self._first: list[float] = []
        """Entropies of the first steps."""

    def step(self, figures: StepFigures) -> list[str]:
        """Sentences to warn with; usually none. Each kind comes once in a run."""
        found = []
        for name, steps, is_bad, text in self._looked_at(figures):
            row = self._in_a_row.get(name, 0) + 1 if is_bad else 0
            self._in_a_row[name] = row
            if row >= steps and name not in self._told:
                self._told.add(name)
                found.append(f"Step {figures.step}: {name}: {text}")
        if figures.entropy is not None and len(self._first) < FIRST:
            self._first.append(figures.entropy)
        return found

    def end(self, spreads: int) -> list[str]:
        """After a run; `spreads`: its groups whose rewards differ. What `step` has not told."""
        if spreads or "equal_rewards" in self._told:
            return []
        return [f"equal_rewards: in no group of the run did rewards differ: {_EQUAL_REWARDS}"]

    def state(self) -> dict[str, JsonValue]:
        """For a resume point."""
        told: list[JsonValue] = [*sorted(self._told)]
        first: list[JsonValue] = [*self._first]
        return {"told": told, "in_a_row": {**self._in_a_row}, "first": first}

    def restore(self, state: Mapping[str, JsonValue]) -> None:
        """What `state` gave."""
        told, rows, first = state["told"], state["in_a_row"], state["first"]
        assert isinstance(told, list)
        assert isinstance(rows, dict)
        assert isinstance(first, list)
        self._told = {str(one) for one in told}
        self._in_a_row = {name: int(str(row)) for name, row in rows.items()}
        self._first = [float(str(one)) for one in first]

    def _looked_at(self, now: StepFigures) -> Iterator[tuple[str, int, bool, str]]:
        """Name, steps in a row, whether this step is one of them, and what to say."""
        gap = now.rollout_gap
        if gap is not None:
            text = (
                f"tokens' log-probabilities when drawn and in training are {gap:.2g} apart on "
                f"average (healthy: up to {self._gap:g}): rollouts are not drawn from the weights "
                "that train. recipe.patches='off' tells whose fault it is; report it."
            )
            yield "rollout_gap", 1, not gap <= self._gap, text
        equal = now.frac_reward_zero_std
        if equal is not None:
            text = f"in every group all rewards were equal for {MANY} steps: {_EQUAL_REWARDS}"
            yield "equal_rewards", MANY, equal >= 1.0, text
            text = (
                f"rewards were equal within {equal:.0%} of the groups, more than "
                f"{EQUAL_REWARDS:.0%} for {MANY} steps: few groups teach anything. Raise "
                "recipe.grpo.num_generations, or take prompts of another difficulty."
            )
            yield "few_spreads", MANY, EQUAL_REWARDS <= equal < 1.0, text
        cut = now.truncated_share
        if cut is not None:
            text = (
                f"every completion reached its limit for {FEW} steps: raise "
                "recipe.grpo.max_completion_length, or use a model that ends its answers."
            )
            yield "all_truncated", FEW, cut >= 1.0, text
            text = (
                f"{cut:.0%} of completions reached their limit, more than {TRUNCATED:.0%} for "
                f"{MANY} steps: raise recipe.grpo.max_completion_length."
            )
            yield "truncated", MANY, TRUNCATED < cut < 1.0, text
        yield from self._of_the_policy(now)

    def _of_the_policy(self, now: StepFigures) -> Iterator[tuple[str, int, bool, str]]:
        entropy = now.entropy
        if entropy is not None and len(self._first) == FIRST:
            start = sum(self._first) / FIRST
            text = (
                f"entropy fell to {entropy:.2g} nats a token, from {start:.2g} in the first "
                f"{FIRST} steps: the completions of a group become equal. Lower "
                "recipe.learning_rate, or raise recipe.grpo.epsilon_high or temperature."
            )
            yield "entropy", FIRST, entropy < ENTROPY * start, text
        if now.kl is not None:
            text = (
                f"the model is {now.kl:.2g} nats a token away from where it started, more than "
                f"{KL:g} for {FIRST} steps: lower recipe.learning_rate, or raise recipe.grpo.beta."
            )
            yield "kl", FIRST, not now.kl <= KL, text
        if now.clip_ratio is not None:
            text = (
                f"{now.clip_ratio:.0%} of tokens were clipped, more than {CLIPPED:.0%} for {MANY} "
                "steps: their gradient is lost. Lower recipe.learning_rate or "
                "recipe.grpo.num_iterations."
            )
            yield "clip_ratio", MANY, not now.clip_ratio <= CLIPPED, text

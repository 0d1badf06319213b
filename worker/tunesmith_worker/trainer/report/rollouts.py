"""What a reinforcement run generated, summed over its steps. Knows no engine and no trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tunesmith_schema import Rollouts


@dataclass(frozen=True, kw_only=True)
class RewardCounts:
    """What the rewards of one round are good for."""

    groups: int
    """Those that have a reward."""
    equal_groups: int
    """Of them, those whose rewards are all equal: nothing is learned from them."""
    ungraded: int
    """Completions without a reward."""


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """Of one round of generation."""

    num_iterations: int
    """Optimiser steps that train on it."""
    completions: int
    generated_tokens: int
    """With the tokens that ended them."""
    longest: int
    """Tokens of the longest completion."""
    truncated: int
    """Completions that reached their limit."""
    rewards: RewardCounts
    decode_steps: int
    """Forward passes that drew a token for each row then alive."""
    graph_steps: int = 0
    """Those that a CUDA graph repeated."""
    weights: Literal["merged", "in_place"]
    layout: Literal["shared", "plain"]
    """How training lays them out: a group's prompt once, or with each completion."""
    trained_slots: int
    """Tokens that go through the model in one training pass over them."""
    plain_slots: int
    """The same if each completion came with its prompt."""


class RolloutCounts:
    """Sums over the rounds so far."""

    def __init__(self) -> None:
        self.rounds = self.generated_tokens = 0
        self._completions = self._truncated = self._longest = 0
        self._decode_steps = self._graph_steps = self._ungraded = 0
        self._groups = self._equal_groups = self._trained = self._plain = 0
        self._last: RoundFigures | None = None

    def add(self, figures: RoundFigures) -> None:
        self.rounds += 1
        self.generated_tokens += figures.generated_tokens
        self._completions += figures.completions
        self._truncated += figures.truncated
        self._longest = max(self._longest, figures.longest)
        self._decode_steps += figures.decode_steps
        self._graph_steps += figures.graph_steps
        self._groups += figures.rewards.groups
        self._equal_groups += figures.rewards.equal_groups
        self._ungraded += figures.rewards.ungraded
        self._trained += figures.trained_slots
        self._plain += figures.plain_slots
        self._last = figures

    def read(self, generate_seconds: float) -> Rollouts | None:
        """None: nothing was generated."""
        if self._last is None:
            return None
        return Rollouts(
            rounds=self.rounds,
            num_iterations=self._last.num_iterations,
            completions=self._completions,
            generated_tokens=self.generated_tokens,
            tokens_per_second=_ratio(self.generated_tokens, generate_seconds, 2),
            decode_steps=self._decode_steps,
            graph_steps=self._graph_steps,
            mean_length=_ratio(self.generated_tokens, self._completions, 2),
            longest=self._longest,
            truncated_share=_ratio(self._truncated, self._completions),
            ungraded_share=_ratio(self._ungraded, self._completions),
            zero_std_share=_ratio(self._equal_groups, self._groups),
            layout=self._last.layout,
            token_ratio=_ratio(self._plain, self._trained),
            weights=self._last.weights,
        )


def _ratio(part: float, whole: float, digits: int = 4) -> float | None:
    return round(part / whole, digits) if whole else None

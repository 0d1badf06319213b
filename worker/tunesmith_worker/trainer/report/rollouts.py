"""Measurements of generation in a reinforcement run, summed over its rounds.

A round generates the completions on which one or several optimizer steps train.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tunesmith_schema import Rollouts
from tunesmith_schema.report import RolloutEngineName


@dataclass(frozen=True, kw_only=True)
class RewardCounts:
    """Counts of one round's rewards."""

    groups: int
    """Number of groups with a reward."""
    equal_groups: int
    """Number of groups whose completions all have the same reward; such groups give no gradient."""
    ungraded: int
    """Number of completions without a reward."""


@dataclass(frozen=True, kw_only=True)
class RoundFigures:
    """Measurements of one round of generation."""

    num_iterations: int
    """Number of optimizer steps that train on the completions of the round."""
    completions: int
    generated_tokens: int
    """Number of generated tokens, including end tokens."""
    longest: int
    """Number of tokens in the longest completion."""
    truncated: int
    """Number of completions that reached the length limit."""
    rewards: RewardCounts
    decode_steps: int
    """Number of decoding passes; each pass generates one token per unfinished row."""
    graph_steps: int = 0
    """Number of decoding passes that replayed a CUDA graph."""
    engine: RolloutEngineName
    weights: Literal["merged", "in_place"]
    layout: Literal["shared", "plain"]
    """Layout of the training rows: the prompt once per group (shared) or once per completion
    (plain)."""
    trained_slots: int
    """Number of tokens in one training forward pass over all completions of the round."""
    plain_slots: int
    """Number of tokens that the plain layout would need in the same forward pass."""


class RolloutCounts:
    """Measurements of generation, summed over all rounds."""

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
        """Return the part of the report about generation; None if nothing was generated."""
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
            engine=self._last.engine,
            weights=self._last.weights,
        )


def _ratio(part: float, whole: float, digits: int = 4) -> float | None:
    return round(part / whole, digits) if whole else None

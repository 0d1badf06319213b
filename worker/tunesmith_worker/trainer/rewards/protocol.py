"""Input and results of graders, independent of trainer, model and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

Item = Mapping[str, JsonValue]
"""A row of the data set, which templates read as `{{item.x}}`."""


class Prompt(Protocol):
    """The part of `data.prompt_rows.PromptRow` that grading needs."""

    @property
    def number(self) -> int: ...  # line of the row in its file

    @property
    def item(self) -> Item: ...

    @property
    def text(self) -> str: ...  # with the chat template applied


@dataclass(frozen=True)
class CompletionText:
    """A completion as text."""

    text: str
    tokens: int
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Graded:
    """Rewards and scores of one completion."""

    rewards: tuple[float | None, ...]
    """One reward for each of `Grading.columns`. None means no reward, as in TRL."""
    scores: Mapping[str, float | None]
    """Scores of all graders and local reward functions, before a multi grader's formula combines
    the scores; the keys are names."""
    errors: tuple[str, ...] = ()
    """Reasons why rewards or scores are None."""

    @property
    def is_graded(self) -> bool:
        """True if the completion has any reward."""
        return any(reward is not None for reward in self.rewards)


class GraderError(Exception):
    """The completion cannot be scored, because the grader or the row is faulty."""


class NoSuchOutput(Exception):
    """The completion lacks a value that a template reads; the completion's score is 0.

    If broken JSON had no score, a model could avoid bad rewards by writing broken JSON.
    """

"""What graders are given and what they answer. Knows no trainer, no model and no tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import JsonValue

Item = Mapping[str, JsonValue]
"""A row of the data set: what `{{item.x}}` reads."""


class Prompt(Protocol):
    """Of `data.prompt_rows.PromptRow`, what grading needs."""

    @property
    def number(self) -> int: ...  # of the row in its file

    @property
    def item(self) -> Item: ...

    @property
    def text(self) -> str: ...  # as the model was asked


@dataclass(frozen=True)
class Sample:
    """A completion."""

    text: str
    tokens: int
    finish_reason: Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class Graded:
    """What graders say of one completion."""

    rewards: tuple[float | None, ...]
    """One for each of `Grading.columns`. None: it could not be scored, and takes no part, as in
    TRL."""
    scores: Mapping[str, float | None]
    """Of every single grader and local reward function by name, before any formula."""
    errors: tuple[str, ...] = ()
    """Why one of them is None."""

    @property
    def is_graded(self) -> bool:
        """Whether it has a reward at all."""
        return any(one is not None for one in self.rewards)


class GraderError(Exception):
    """One completion cannot be scored: the grader or the row is at fault, not the completion."""


class NoSuchOutput(Exception):
    """The completion lacks what a template reads: it is worth 0, or a model that writes broken JSON
    would escape its bad reward."""

"""Prompts, samples and graders for the tests of rewards."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter

from tunesmith_schema import Grader
from tunesmith_worker.trainer.rewards import CompletionText, Graded
from tunesmith_worker.trainer.rewards.grading import SpecGrader
from tunesmith_worker.trainer.rewards.protocol import Item
from tunesmith_worker.trainer.rewards.templates import GraderInput

_GRADER: TypeAdapter[Grader] = TypeAdapter(Grader)


@dataclass(frozen=True)
class Row:
    item: Item = field(default_factory=dict)
    number: int = 1
    text: str = "the prompt"


def sample(text: str, tokens: int = 5) -> CompletionText:
    return CompletionText(text, tokens, "stop")


def grader(type: str, **fields: object) -> Grader:
    return _GRADER.validate_python({"type": type, **fields})


def score(text: str, item: Item | None = None, **fields: object) -> float:
    """Return the reward of one completion from the grader with these `fields`."""
    graded = _graded(text, item, fields)
    assert graded.errors == ()
    (reward,) = graded.rewards
    assert reward is not None
    return reward


def error(text: str, item: Item | None = None, **fields: object) -> str:
    """Return the error of the grader with these `fields` for one completion."""
    graded = _graded(text, item, fields)
    assert graded.rewards == (None,)
    (message,) = graded.errors
    return message


def _graded(text: str, item: Item | None, fields: dict[str, object]) -> Graded:
    return SpecGrader(_GRADER.validate_python(fields)).grade(
        GraderInput(Row(item or {}), sample(text))
    )

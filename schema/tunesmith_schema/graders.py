"""Graders: what scores a completion in reinforcement tuning, as data. OpenAI's types, and ours for
answers that need no judge.

Texts are templates: `{{item.x}}` is a field of the data row, `{{sample.output_text}}` the
completion, `{{sample.output_json.x}}` a field of it, read as JSON.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag
from pydantic_core import PydanticCustomError

from .base import Request, Text

OUTPUT = "{{sample.output_text}}"
"""The whole completion."""
Overlap = Literal["cosine", "fuzzy_match", "bleu", "gleu", "meteor"]
Rouge = Literal["rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]
Template = Annotated[Text, Field(max_length=100_000)]
Name = Annotated[Text, Field(min_length=1, max_length=64)]


class StringCheckGrader(Request):
    """1 where two texts compare as asked, else 0."""

    type: Literal["string_check"]
    """The kind of grader."""
    name: Name = "string_check"
    """What its score is called."""
    input: Template
    """What is looked at."""
    reference: Template
    """What it is compared with."""
    operation: Literal["eq", "ne", "like", "ilike"]
    """Equal, not equal, contains `reference`, contains it whatever the case."""


class TextSimilarityGrader(Request):
    """How alike two texts are, 0 to 1."""

    type: Literal["text_similarity"]
    """The kind of grader."""
    name: Name = "text_similarity"
    """What its score is called."""
    input: Template
    """What is looked at."""
    reference: Template
    """What it is compared with."""
    evaluation_metric: Overlap | Rouge
    """How."""


class MathAnswerGrader(Request):
    """1 where the last number that `input` gives as its answer (`#### N`, `\\boxed{N}`, else its
    last number) equals that of `reference`, else 0."""

    type: Literal["math_answer"]
    """The kind of grader."""
    name: Name = "math_answer"
    """What its score is called."""
    input: Template = OUTPUT
    """What is looked at."""
    reference: Template
    """A number, or a text that ends in one."""
    tolerance: float = Field(default=1e-6, ge=0.0, allow_inf_nan=False)
    """Relative difference that still counts as equal."""
    format: Literal["any", "hashes", "boxed"] = "any"
    """Where the answer must stand: anywhere, after `####`, in `\\boxed{}`."""


class RegexGrader(Request):
    """1 where the pattern is found in `input`, else 0."""

    type: Literal["regex"]
    """The kind of grader."""
    name: Name = "regex"
    """What its score is called."""
    input: Template = OUTPUT
    """What is looked at."""
    pattern: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Python's `re`, searched anywhere; `^` and `$` are the ends of the text."""
    ignore_case: bool = False
    """Whatever the case."""


class JsonSchemaGrader(Request):
    """1 where `input` is JSON that fits a schema, else 0."""

    type: Literal["json_schema"]
    """The kind of grader."""
    name: Name = "json_schema"
    """What its score is called."""
    input: Template = OUTPUT
    """What is looked at; a Markdown fence around it does not count."""
    json_schema: dict[str, JsonValue]
    """JSON Schema, draft 2020-12; `$ref` only within it."""


class LengthGrader(Request):
    """1 up to `target`, then falling in a straight line to 0 at `limit`."""

    type: Literal["length"]
    """The kind of grader."""
    name: Name = "length"
    """What its score is called."""
    unit: Literal["tokens", "characters", "words"] = "tokens"
    """What is counted, of the completion."""
    target: Annotated[int, Field(ge=0)]
    """The longest that is still worth 1."""
    limit: Annotated[int, Field(ge=1)]
    """From which on it is worth 0."""


class MultiGrader(Request):
    """One reward out of several graders' scores."""

    type: Literal["multi"]
    """The kind of grader."""
    name: Name = "multi"
    """What the reward is called."""
    graders: dict[Name, SingleGrader] = Field(min_length=1, max_length=32)
    """By the names that the formula uses."""
    calculate_output: Annotated[Text, Field(min_length=1, max_length=2000)]
    """A formula: + - * / ** %, comparisons, and, or, not, `a if b else c`, min, max, abs, floor,
    ceil, exp, log, sqrt, numbers and the graders' names."""


_REFUSED = {
    "python": "it runs the caller's code, and there is no sandbox for that here: use the graders "
    "without code, or `tunesmith run` with a reward function on a machine of your own",
    "score_model": "no model judges here yet",
    "label_model": "no model judges here yet",
}
_KNOWN = "string_check, text_similarity, multi, math_answer, regex, json_schema, length"


def _kind(value: Any) -> str:  # Any: whatever JSON the caller sent
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind in _REFUSED:
        raise PydanticCustomError(
            "grader_not_offered",
            "grader type '{type}' is not offered: {reason}",
            {"type": kind, "reason": _REFUSED[kind]},
        )
    if kind not in _KNOWN.split(", "):
        raise PydanticCustomError(
            "unknown_grader",
            "unknown grader type {type}: it is one of {known}",
            {"type": repr(kind)[:80].encode(errors="replace").decode(), "known": _KNOWN},
        )
    return str(kind)


SingleGrader = Annotated[
    Annotated[StringCheckGrader, Tag("string_check")]
    | Annotated[TextSimilarityGrader, Tag("text_similarity")]
    | Annotated[MathAnswerGrader, Tag("math_answer")]
    | Annotated[RegexGrader, Tag("regex")]
    | Annotated[JsonSchemaGrader, Tag("json_schema")]
    | Annotated[LengthGrader, Tag("length")],
    Discriminator(_kind),
]
Grader = Annotated[
    Annotated[StringCheckGrader, Tag("string_check")]
    | Annotated[TextSimilarityGrader, Tag("text_similarity")]
    | Annotated[MathAnswerGrader, Tag("math_answer")]
    | Annotated[RegexGrader, Tag("regex")]
    | Annotated[JsonSchemaGrader, Tag("json_schema")]
    | Annotated[LengthGrader, Tag("length")]
    | Annotated[MultiGrader, Tag("multi")],
    Discriminator(_kind),
]
MultiGrader.model_rebuild()

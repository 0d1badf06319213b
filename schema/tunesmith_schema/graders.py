"""Graders: what scores a completion in reinforcement tuning, as data. OpenAI's types, and ours for
answers that need no judge.

Texts are templates: `{{item.x}}` is a field of the data row, `{{sample.output_text}}` the
completion, `{{sample.output_json.x}}` a field of it, read as JSON.
"""

from __future__ import annotations

import keyword
import re
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from .base import Request, Text
from .formulas import FUNCTIONS, parse_formula
from .templates import parse_template, references

OUTPUT = "{{sample.output_text}}"
"""The whole completion."""
Overlap = Literal["cosine", "fuzzy_match", "bleu", "gleu", "meteor"]
Rouge = Literal["rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]


def _parses(template: str) -> str:
    parse_template(template)
    return template


def _compiles(pattern: str) -> str:
    try:
        with warnings.catch_warnings():  # of what a later Python may read otherwise
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"no regular expression that Python's re reads: {error}") from error
    return pattern


Template = Annotated[Text, Field(max_length=100_000), AfterValidator(_parses)]
Pattern = Annotated[Text, Field(min_length=1, max_length=2000), AfterValidator(_compiles)]
Name = Annotated[Text, Field(min_length=1, max_length=64)]


def _targets(schema: JsonValue) -> Iterator[str]:
    """Of every $ref in a JSON Schema."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                if key in ("$ref", "$dynamicRef") and isinstance(inner, str):
                    yield inner
                elif key not in ("const", "enum", "default", "examples"):
                    waiting.append(inner)


def _one_or_named(value: Any) -> str:  # Any: whatever JSON the caller sent
    return "<one>" if isinstance(_kind(value), str) else "<named>"


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
    pattern: Pattern
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

    @field_validator("json_schema")
    @classmethod
    def _refers_to_itself(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for target in _targets(value):
            if not target.startswith("#"):
                raise ValueError(
                    f"$ref '{target[:200]}' leads out of the schema: put what it names into $defs "
                    "and write '#/$defs/NAME'"
                )
        return value


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

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.limit <= self.target:
            raise ValueError(f"limit={self.limit} must be above target={self.target}")
        return self


class MultiGrader(Request):
    """One reward out of several graders' scores."""

    type: Literal["multi"]
    """The kind of grader."""
    name: Name = "multi"
    """What the reward is called."""
    graders: Annotated[
        Annotated[SingleGrader, Tag("<one>")]
        | Annotated[dict[Name, SingleGrader], Field(min_length=1, max_length=32), Tag("<named>")],
        Discriminator(_one_or_named),
    ]
    """By the names that the formula uses; or one grader, which is called by its own name."""
    calculate_output: Annotated[Text, Field(min_length=1, max_length=2000)]
    """A formula: + - * / ** % (`^` is `**`), comparisons, and, or, not, `a if b else c`, min, max,
    abs, floor, ceil, exp, log, sqrt, numbers and the graders' names."""

    @property
    def by_name(self) -> dict[str, SingleGrader]:
        """The graders as the formula calls them."""
        return _by_name(self.graders)

    @field_validator("graders")
    @classmethod
    def _can_be_named(
        cls, value: SingleGrader | dict[str, SingleGrader]
    ) -> SingleGrader | dict[str, SingleGrader]:
        for name in _by_name(value):
            if not name.isidentifier() or keyword.iskeyword(name) or name in FUNCTIONS:
                raise ValueError(
                    f"'{name}' cannot stand in a formula: use letters, digits and _, no digit "
                    "first, and none of Python's words or the functions' names"
                )
        return value

    @field_validator("calculate_output")
    @classmethod
    def _formula_fits(cls, value: str, info: ValidationInfo) -> str:
        if "graders" in info.data:  # else they are at fault, and the formula is not looked at
            parse_formula(value, _by_name(info.data["graders"]))
        return value


def _by_name(graders: SingleGrader | dict[str, SingleGrader]) -> dict[str, SingleGrader]:
    return graders if isinstance(graders, dict) else {graders.name: graders}


_REFUSED = {
    "python": "it runs the caller's code, and there is no sandbox for that here: use the graders "
    "without code, or `tunesmith run` with a reward function on a machine of your own",
    "score_model": "no model judges here yet",
    "label_model": "no model judges here yet",
}
_SINGLE = ("string_check", "text_similarity", "math_answer", "regex", "json_schema", "length")


def _kind(value: Any) -> Any:  # Any: whatever JSON the caller sent
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


def _tag(value: Any) -> str:  # Any: whatever JSON the caller sent
    return f"<{_kind(value)}>"


def _is_offered(value: Any) -> Any:  # Any: whatever JSON the caller sent
    return value if _kind(value) == "multi" else _is_single(value, "multi")


def _is_single(value: Any, *others: str) -> Any:  # Any: whatever JSON the caller sent
    kind = _kind(value)
    if isinstance(kind, str) and kind in _REFUSED:
        raise PydanticCustomError(
            "grader_not_offered",
            "grader type '{type}' is not offered: {reason}",
            {"type": kind, "reason": _REFUSED[kind]},
        )
    if kind == "multi":
        raise PydanticCustomError(
            "nested_grader", "a multi grader holds no multi grader: write one formula", {}
        )
    if kind not in _SINGLE:
        raise PydanticCustomError(
            "unknown_grader",
            "unknown grader type {type}: it is one of {known}",
            {
                "type": repr(kind)[:80].encode(errors="replace").decode(),
                "known": ", ".join((*_SINGLE, *others)),
            },
        )
    return value


SingleGrader = Annotated[
    Annotated[StringCheckGrader, Tag("<string_check>")]
    | Annotated[TextSimilarityGrader, Tag("<text_similarity>")]
    | Annotated[MathAnswerGrader, Tag("<math_answer>")]
    | Annotated[RegexGrader, Tag("<regex>")]
    | Annotated[JsonSchemaGrader, Tag("<json_schema>")]
    | Annotated[LengthGrader, Tag("<length>")],
    Discriminator(_tag),
    BeforeValidator(_is_single),
]
Grader = Annotated[
    Annotated[StringCheckGrader, Tag("<string_check>")]
    | Annotated[TextSimilarityGrader, Tag("<text_similarity>")]
    | Annotated[MathAnswerGrader, Tag("<math_answer>")]
    | Annotated[RegexGrader, Tag("<regex>")]
    | Annotated[JsonSchemaGrader, Tag("<json_schema>")]
    | Annotated[LengthGrader, Tag("<length>")]
    | Annotated[MultiGrader, Tag("<multi>")],
    Discriminator(_tag),
    BeforeValidator(_is_offered),
]
MultiGrader.model_rebuild()


def reads_completion(grader: Grader) -> bool:
    """Whether anything of it can tell one completion of a prompt from another."""
    if isinstance(grader, MultiGrader):
        return any(reads_completion(one) for one in grader.by_name.values())
    texts = [getattr(grader, name, "") for name in ("input", "reference")]
    found = [reference for text in texts for reference in references(text)]
    return isinstance(grader, LengthGrader) or any(one.root != "item" for one in found)

"""Graders: settings for scoring completions in reinforcement tuning. The types are OpenAI's, plus
our own types for answers that can be scored without a judge model.

Texts are templates: `{{item.x}}` is a field of the data row, `{{sample.output_text}}` is the
completion, and `{{sample.output_json.x}}` is a field of the completion parsed as JSON.
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
from .bounds import JsonBound, at_most
from .formulas import FUNCTIONS, parse_formula
from .templates import parse_template, references

MAX_GRADER_BYTES, MAX_SCHEMA_BYTES = 256 * 1024, 64 * 1024
"""Maximum size in bytes of a grader, and of a JSON Schema in a grader, as JSON."""
MAX_GRADERS = 32
"""Maximum number of graders in a multi grader."""
MAX_LENGTH = 100_000_000
"""Maximum value of `target` and of `limit` in a length grader."""
OUTPUT = "{{sample.output_text}}"
"""Template whose value is the whole completion."""
Overlap = Literal["cosine", "fuzzy_match", "bleu", "gleu", "meteor"]
Rouge = Literal["rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]


def _parses(template: str) -> str:
    parse_template(template)
    return template


def _compiles(pattern: str) -> str:
    try:
        with warnings.catch_warnings():  # hides warnings about ambiguous patterns
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a valid regular expression for Python's re: {error}") from error
    return pattern


Template = Annotated[Text, Field(max_length=100_000), AfterValidator(_parses)]
Pattern = Annotated[Text, Field(min_length=1, max_length=2000), AfterValidator(_compiles)]
Name = Annotated[Text, Field(min_length=1, max_length=64)]


def _targets(schema: JsonValue) -> Iterator[str]:
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, dict):
            for key, inner in value.items():
                if key in ("$ref", "$dynamicRef") and isinstance(inner, str):
                    yield inner
                elif key not in ("const", "enum", "default", "examples"):
                    pending.append(inner)


def _one_or_named(value: Any) -> str:  # Any: whatever JSON the caller sent
    return "<one>" if isinstance(_kind(value), str) else "<named>"


class StringCheckGrader(Request):
    """Score 1 if two texts satisfy the comparison `operation`, else 0."""

    type: Literal["string_check"]
    """Kind of grader."""
    name: Name = "string_check"
    """Name of the score."""
    input: Template
    """Text to check."""
    reference: Template
    """Text to compare with."""
    operation: Literal["eq", "ne", "like", "ilike"]
    """Comparison. `eq`: equal; `ne`: not equal; `like`: contains `reference`; `ilike`: contains
    `reference`, ignoring case."""


class TextSimilarityGrader(Request):
    """Score the similarity of two texts from 0 to 1."""

    type: Literal["text_similarity"]
    """Kind of grader."""
    name: Name = "text_similarity"
    """Name of the score."""
    input: Template
    """Text to score."""
    reference: Template
    """Text to compare with."""
    evaluation_metric: Overlap | Rouge
    """Similarity metric."""


class MathAnswerGrader(Request):
    """Score 1 if the numeric answer in `input` equals the number in `reference`, else 0. The answer
    is `#### N` or `\\boxed{N}`; if neither is present, the answer is the last number."""

    type: Literal["math_answer"]
    """Kind of grader."""
    name: Name = "math_answer"
    """Name of the score."""
    input: Template = OUTPUT
    """Text to score."""
    reference: Template
    """A number, or a text that ends in a number."""
    tolerance: float = Field(default=1e-6, ge=0.0, le=1e6, allow_inf_nan=False)
    """Maximum relative difference of two numbers that count as equal."""
    format: Literal["any", "hashes", "boxed"] = "any"
    """Required place of the answer: anywhere (`any`), after `####` (`hashes`) or in `\\boxed{}`
    (`boxed`)."""


class RegexGrader(Request):
    """Score 1 if the pattern matches anywhere in `input`, else 0."""

    type: Literal["regex"]
    """Kind of grader."""
    name: Name = "regex"
    """Name of the score."""
    input: Template = OUTPUT
    """Text to search."""
    pattern: Pattern
    """Regular expression of Python's `re`; `^` and `$` match at the start and at the end of the
    text."""
    ignore_case: bool = False
    """Ignore case."""


class JsonSchemaGrader(Request):
    """Score 1 if `input` is JSON that fulfils a schema, else 0."""

    type: Literal["json_schema"]
    """Kind of grader."""
    name: Name = "json_schema"
    """Name of the score."""
    input: Template = OUTPUT
    """Text to validate; a Markdown code fence around the text is ignored."""
    json_schema: Annotated[dict[str, JsonValue], JsonBound(MAX_SCHEMA_BYTES, finite=True)]
    """JSON Schema, draft 2020-12. `$ref` may only refer to parts of this schema."""

    @field_validator("json_schema")
    @classmethod
    def _refers_to_itself(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for target in _targets(value):
            if not target.startswith("#"):
                raise ValueError(
                    f"$ref '{target[:200]}' refers outside the schema: move its target into $defs "
                    "and write '#/$defs/NAME'"
                )
        return value


class LengthGrader(Request):
    """Score the completion's length: 1 up to `target`, then decreasing linearly to 0 at `limit`."""

    type: Literal["length"]
    """Kind of grader."""
    name: Name = "length"
    """Name of the score."""
    unit: Literal["tokens", "characters", "words"] = "tokens"
    """Unit of the completion's length."""
    target: Annotated[int, Field(ge=0, le=MAX_LENGTH)]
    """Largest length with score 1."""
    limit: Annotated[int, Field(ge=1, le=MAX_LENGTH)]
    """Smallest length with score 0."""

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.limit <= self.target:
            raise ValueError(f"limit={self.limit} must be above target={self.target}")
        return self


class MultiGrader(Request):
    """Reward computed from the scores of several graders."""

    type: Literal["multi"]
    """Kind of grader."""
    name: Name = "multi"
    """Name of the reward."""
    graders: Annotated[
        Annotated[SingleGrader, Tag("<one>")]
        | Annotated[
            dict[Name, SingleGrader],
            Field(min_length=1, max_length=MAX_GRADERS),
            at_most(MAX_GRADERS),
            Tag("<named>"),
        ],
        Discriminator(_one_or_named),
    ]
    """Graders by name; the formula uses these names. If there is only one grader, it may be given
    without a key; the formula then uses the grader's field `name`."""
    calculate_output: Annotated[Text, Field(min_length=1, max_length=2000)]
    """Formula of the reward. The formula may contain + - * / ** % (`^` means `**`), comparisons,
    and, or, not, `a if b else c`, min, max, abs, floor, ceil, exp, log, sqrt, numbers and the
    graders' names."""

    @property
    def by_name(self) -> dict[str, SingleGrader]:
        """Return the graders by their names in the formula."""
        return _by_name(self.graders)

    @field_validator("graders")
    @classmethod
    def _can_be_named(
        cls, value: SingleGrader | dict[str, SingleGrader]
    ) -> SingleGrader | dict[str, SingleGrader]:
        for name in _by_name(value):
            if not name.isidentifier() or keyword.iskeyword(name) or name in FUNCTIONS:
                raise ValueError(
                    f"'{name}' cannot be used in a formula: use letters, digits and _, start with "
                    "a letter or _, and avoid Python's keywords and the names of functions"
                )
        return value

    @field_validator("calculate_output")
    @classmethod
    def _formula_fits(cls, value: str, info: ValidationInfo) -> str:
        if "graders" in info.data:  # missing if the graders are invalid
            parse_formula(value, _by_name(info.data["graders"]))
        return value


def _by_name(graders: SingleGrader | dict[str, SingleGrader]) -> dict[str, SingleGrader]:
    return graders if isinstance(graders, dict) else {graders.name: graders}


_REFUSED = {
    "python": "it runs the caller's code, and the server has no sandbox for that: use a grader "
    "without code, or `tunesmith run` with a reward function on your own machine",
    "score_model": "graders that use a model are not available yet",
    "label_model": "graders that use a model are not available yet",
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
            "grader type '{type}' is not available: {reason}",
            {"type": kind, "reason": _REFUSED[kind]},
        )
    if kind == "multi":
        raise PydanticCustomError(
            "nested_grader", "a multi grader cannot contain a multi grader: use one formula", {}
        )
    if kind not in _SINGLE:
        raise PydanticCustomError(
            "unknown_grader",
            "unknown grader type {type}; the types are {known}",
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
BoundedGrader = Annotated[Grader, JsonBound(MAX_GRADER_BYTES)]
MultiGrader.model_rebuild()


def reads_completion(grader: Grader) -> bool:
    """Return True if the grader's score depends on the completion."""
    if isinstance(grader, MultiGrader):
        return any(reads_completion(member) for member in grader.by_name.values())
    templates = [getattr(grader, name, "") for name in ("input", "reference")]
    values = [reference for template in templates for reference in references(template)]
    return isinstance(grader, LengthGrader) or any(value.root != "item" for value in values)

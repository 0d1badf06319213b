"""One function for each grader of a spec: a completion in, 0 to 1 out."""

from __future__ import annotations

from collections.abc import Callable

import jsonschema_rs
import regex

from tunesmith_schema import ErrorCategory, ErrorCode, SingleGrader
from tunesmith_schema.graders import (
    JsonSchemaGrader,
    LengthGrader,
    MathAnswerGrader,
    RegexGrader,
    StringCheckGrader,
    TextSimilarityGrader,
)
from tunesmith_worker.rundir.errors import RunError

from .math_answer import find_answer, same
from .protocol import GraderError, NoSuchOutput
from .similarity import metric
from .templates import Completion, read_json, renderer

Scorer = Callable[[Completion], float]
"""Raises GraderError, and NoSuchOutput, which is a score of 0."""
PATTERN_SECONDS = 1.0
"""A pattern that takes longer on one completion is given up there."""


def scorer(grader: SingleGrader) -> Scorer:
    """Raises RunError where the grader itself is no good."""
    match grader:
        case StringCheckGrader():
            return _string_check(grader)
        case TextSimilarityGrader():
            return _text_similarity(grader)
        case MathAnswerGrader():
            return _math_answer(grader)
        case RegexGrader():
            return _regex(grader)
        case JsonSchemaGrader():
            return _json_schema(grader)
        case LengthGrader():
            return _length(grader)


def _string_check(grader: StringCheckGrader) -> Scorer:
    looked_at, reference = renderer(grader.input), renderer(grader.reference)
    compare: dict[str, Callable[[str, str], bool]] = {
        "eq": lambda text, wanted: text == wanted,
        "ne": lambda text, wanted: text != wanted,
        "like": lambda text, wanted: wanted in text,
        "ilike": lambda text, wanted: wanted.casefold() in text.casefold(),
    }
    holds = compare[grader.operation]
    return lambda completion: float(holds(looked_at(completion), reference(completion)))


def _text_similarity(grader: TextSimilarityGrader) -> Scorer:
    looked_at, reference = renderer(grader.input), renderer(grader.reference)
    alike = metric(grader.evaluation_metric)
    return lambda completion: alike(looked_at(completion), reference(completion))


def _math_answer(grader: MathAnswerGrader) -> Scorer:
    looked_at, reference = renderer(grader.input), renderer(grader.reference)

    def score(completion: Completion) -> float:
        text = reference(completion)
        wanted = find_answer(text)
        if wanted is None:
            raise GraderError(
                f"row {completion.prompt.number}: the reference has no number: {text[:80]!r}"
            )
        answer = find_answer(looked_at(completion), grader.format)
        return float(answer is not None and same(answer, wanted, grader.tolerance))

    return score


def _regex(grader: RegexGrader) -> Scorer:
    looked_at = renderer(grader.input)
    try:
        pattern = regex.compile(grader.pattern, regex.I if grader.ignore_case else 0)
    except regex.error as error:
        raise _unusable(grader.name, f"the pattern {grader.pattern[:80]!r}: {error}") from error

    def score(completion: Completion) -> float:
        try:
            found = pattern.search(looked_at(completion), timeout=PATTERN_SECONDS, concurrent=True)
        except TimeoutError as error:
            raise GraderError(
                f"the pattern {grader.pattern[:80]!r} took more than {PATTERN_SECONDS:g} s on one "
                "completion: it backtracks without end, as (a+)+ does"
            ) from error
        return float(found is not None)

    return score


def _json_schema(grader: JsonSchemaGrader) -> Scorer:
    looked_at = renderer(grader.input)
    try:
        validator = jsonschema_rs.Draft202012Validator(
            grader.json_schema, offline=True, validate_formats=True
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        what = str(error).partition("\n")[0]
        raise _unusable(grader.name, f"its json_schema is not valid: {what}") from error

    def score(completion: Completion) -> float:
        try:
            return float(validator.is_valid(read_json(looked_at(completion))))
        except ValueError as error:
            raise NoSuchOutput(str(error)) from error

    return score


def _length(grader: LengthGrader) -> Scorer:
    def score(completion: Completion) -> float:
        sample = completion.sample
        counted = {
            "tokens": lambda: sample.tokens,
            "characters": lambda: len(sample.text),
            "words": lambda: len(sample.text.split()),
        }[grader.unit]()
        share = (grader.limit - counted) / (grader.limit - grader.target)
        return min(1.0, max(0.0, share))

    return score


def _unusable(name: str, what: str) -> RunError:
    return RunError(
        ErrorCode.GRADER_INVALID, f"Grader '{name}': {what}", category=ErrorCategory.GRADER
    )

"""Scoring functions, one per grader type, which map a completion to a score from 0 to 1."""

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

from .math_answer import equal_numbers, find_answer
from .protocol import GraderError, NoSuchOutput
from .similarity import metric
from .templates import GraderInput, read_json, renderer

Scorer = Callable[[GraderInput], float]
"""Function that returns a completion's score. The function raises NoSuchOutput if the completion
lacks a value that the grader reads; the score is then 0. The function raises GraderError if no
score can be computed."""
PATTERN_SECONDS = 1.0
"""Time limit in seconds for one regular expression on one completion."""


def scorer(grader: SingleGrader) -> Scorer:
    """Return the scoring function of a grader. Raises RunError for an invalid grader."""
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
    input_text, reference = renderer(grader.input), renderer(grader.reference)
    compare: dict[str, Callable[[str, str], bool]] = {
        "eq": lambda text, wanted: text == wanted,
        "ne": lambda text, wanted: text != wanted,
        "like": lambda text, wanted: wanted in text,
        "ilike": lambda text, wanted: wanted.casefold() in text.casefold(),
    }
    matches = compare[grader.operation]
    return lambda completion: float(matches(input_text(completion), reference(completion)))


def _text_similarity(grader: TextSimilarityGrader) -> Scorer:
    input_text, reference = renderer(grader.input), renderer(grader.reference)
    similarity = metric(grader.evaluation_metric)
    return lambda completion: similarity(input_text(completion), reference(completion))


def _math_answer(grader: MathAnswerGrader) -> Scorer:
    input_text, reference = renderer(grader.input), renderer(grader.reference)

    def score(completion: GraderInput) -> float:
        text = reference(completion)
        wanted = find_answer(text)
        if wanted is None:
            raise GraderError(
                f"row {completion.prompt.number}: the reference has no number: {text[:80]!r}"
            )
        answer = find_answer(input_text(completion), grader.format)
        return float(answer is not None and equal_numbers(answer, wanted, grader.tolerance))

    return score


def _regex(grader: RegexGrader) -> Scorer:
    input_text = renderer(grader.input)
    try:
        pattern = regex.compile(grader.pattern, regex.I if grader.ignore_case else 0)
    except regex.error as error:
        message = f"the pattern {grader.pattern[:80]!r} is not valid: {error}"
        raise _invalid(grader.name, message) from error

    def score(completion: GraderInput) -> float:
        try:
            match = pattern.search(input_text(completion), timeout=PATTERN_SECONDS, concurrent=True)
        except TimeoutError as error:
            raise GraderError(
                f"the pattern {grader.pattern[:80]!r} took more than {PATTERN_SECONDS:g} s on one "
                "completion: it tries too many ways to match. Avoid nested repetition such as (a+)+"
            ) from error
        return float(match is not None)

    return score


def _json_schema(grader: JsonSchemaGrader) -> Scorer:
    input_text = renderer(grader.input)
    try:
        validator = jsonschema_rs.Draft202012Validator(
            grader.json_schema, offline=True, validate_formats=True
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).partition("\n")[0]
        raise _invalid(grader.name, f"its json_schema is not valid: {reason}") from error

    def score(completion: GraderInput) -> float:
        try:
            return float(validator.is_valid(read_json(input_text(completion))))
        except ValueError as error:
            raise NoSuchOutput(str(error)) from error

    return score


def _length(grader: LengthGrader) -> Scorer:
    def score(completion: GraderInput) -> float:
        sample = completion.sample
        counted = {
            "tokens": lambda: sample.tokens,
            "characters": lambda: len(sample.text),
            "words": lambda: len(sample.text.split()),
        }[grader.unit]()
        share = (grader.limit - counted) / (grader.limit - grader.target)
        return min(1.0, max(0.0, share))

    return score


def _invalid(name: str, message: str) -> RunError:
    return RunError(
        ErrorCode.GRADER_INVALID, f"Grader '{name}': {message}", category=ErrorCategory.GRADER
    )

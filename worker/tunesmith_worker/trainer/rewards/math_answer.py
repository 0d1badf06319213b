r"""Extraction of a text's numeric answer: after `####`, in `\boxed{}`, or the last number.

Numbers are compared as exact fractions. Algebra such as `x^{10}` or `\sqrt{2}` is not a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

AnswerFormat = Literal["any", "hashes", "boxed"]
_LOOKED_AT = 10_000
"""Number of final characters in which to search for the last number."""
_MARKS = 50
"""Maximum number of `####` marks or boxed answers to try. The search begins at the end of the
text."""
_LONGEST = 400
"""Maximum characters of an answer in a box, or of a number."""

_WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]++)"
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]++)?|\.[0-9]++)"
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_^])(?<![0-9]\.)(?<![\^_]\{)"
    rf"(?:(?<!/)(?:(?P<whole>{_WHOLE})[ ]{{1,3}})?"
    rf"(?P<over>{_DECIMAL}) ?/ ?(?P<under>{_DECIMAL})(?![\w/])"
    rf"|(?P<decimal>{_DECIMAL})(?P<exponent>[eE][-+]?[0-9]{{1,3}}(?!\w))?(?![eE][-+]?[0-9]))"
    r"(?P<percent>\s?%|\s?percent\b)?"
)
_SIGN = re.compile(
    r"(?:\A|(?P<before>.)(?P<gap>[^\S\n]*))(?P<sign>[-+])(?P<space>[^\S\n]?)\Z", re.DOTALL
)
_CURRENCY = re.compile(r"[$€£¥₹][^\S\n]?\Z")
_HASHES = re.compile(r"####([^\n]*)")
_BOX = re.compile(r"\\boxed\s?\{")
_BRACES = r"\{([^{}]{1,99})\}"
_POWER_OF_TEN = r"\s?(?:\\times|\\cdot|[\u00d7*])\s?10\^(?:\{([-+]?[0-9]{1,3})\}|([-+]?[0-9]{1,3}))"
_REWRITTEN = (
    (re.compile("[−–﹣－]"), "-"),  # noqa: RUF001 - replaces these signs
    (re.compile(r"\\([$%])"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=[0-9])(?:\\[,!;: ]|[\u00a0\u2009\u202f])(?=[0-9]{3})"), ""),
    (re.compile(r"\\(?:text|mathrm|textbf|mathbf)\{[^{}]{0,99}\}"), " "),
    (re.compile(r"(?<=[0-9])\s?\\[dtc]?frac"), r" \\frac"),
    (re.compile(rf"\\[dtc]?frac\s?(?:{_BRACES}\s?{_BRACES})"), r"\1/\2"),
    (re.compile(r"\\[dtc]?frac\s?([0-9])\s?([0-9])"), r"\1/\2"),
    (re.compile(_POWER_OF_TEN), r"e\1\2"),
)
_MORE_THAN_UNARY = re.compile(r"[\w)\]}%]")


@dataclass(frozen=True)
class Number:
    value: Fraction
    """Value before a percent sign: 5 for `5%`."""
    percent: bool = False


def find_answer(text: str, format: AnswerFormat = "any") -> Number | None:
    """Return the answer in a text; None if `format` requires a number and the text has none."""
    if format in ("any", "hashes"):
        marks = [match[1] for match in _HASHES.finditer(text)][-_MARKS:]
        for line in reversed(marks):
            if (number := next(_numbers(line[:_LOOKED_AT]), None)) is not None:
                return number
    if format in ("any", "boxed"):
        starts = [match.end() for match in _BOX.finditer(text)][-_MARKS:]
        for start in reversed(starts):
            content = _in_braces(text[start : start + _LONGEST])
            if content is not None and (number := _last(content)) is not None:
                return number
    return _last(text[-_LOOKED_AT:]) if format == "any" else None


def equal_numbers(answer: Number, reference: Number, tolerance: float) -> bool:
    """Return True if two numbers differ by at most `tolerance`, relative to the reference.

    If only one number has a percent sign, the division by 100 is optional: 5% equals both 0.05 and
    5.
    """
    wanted = {reference.value}
    if answer.percent and not reference.percent:
        wanted.add(reference.value * 100)
    elif reference.percent and not answer.percent:
        wanted.add(reference.value / 100)
    room = Fraction(str(tolerance))
    return any(abs(answer.value - value) <= room * abs(value) for value in wanted)


def _last(text: str) -> Number | None:
    number = None
    for number in _numbers(text):  # noqa: B007 - only the last number is needed
        pass
    return number


def _numbers(text: str) -> Iterator[Number]:
    for pattern, instead in _REWRITTEN:
        text = pattern.sub(instead, text)
    for match in _NUMBER.finditer(text):
        parts = {name: (part or "").replace(",", "") for name, part in match.groupdict().items()}
        if len(match[0]) > _LONGEST:
            continue
        if parts["over"]:
            under = Fraction(parts["under"])
            if not under:
                continue
            value = Fraction(parts["whole"] or 0) + Fraction(parts["over"]) / under
        else:
            value = Fraction(parts["decimal"] + parts["exponent"])
        negative = _is_negative(text[max(0, match.start() - 80) : match.start()])
        yield Number(-value if negative else value, bool(parts["percent"]))


def _is_negative(before: str) -> bool:
    """Return True for a minus sign, False for a subtraction (`5 - 3`, `5-3`) or a list bullet."""
    match = _SIGN.search(_CURRENCY.sub("", before))
    if match is None or match["sign"] != "-":
        return False
    previous, gap, space = match["before"], match["gap"], match["space"]
    if previous is None:
        return True
    if space:
        return previous != "\n" and not _MORE_THAN_UNARY.match(previous)
    return bool(gap) or not _MORE_THAN_UNARY.match(previous)


def _in_braces(text: str) -> str | None:
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if depth == 0:
            return text[:place]
    return None

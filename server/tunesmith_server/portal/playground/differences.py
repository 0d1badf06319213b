"""Search of words that differ between two answers; the result is the indices of the pieces with
these words."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate

MOST_WORDS = 1500
"""Maximum number of words of an answer that are compared, because the comparison takes quadratic
time."""
_WORD = re.compile(r"\S+")


def differing(answers: Sequence[Sequence[str]]) -> list[list[int]]:
    """Compare answers, each given as a list of pieces: the first with the second, and all others
    with the first. For each answer, return the indices of the pieces with words that differ."""
    if len(answers) < 2:
        return [[] for _ in answers]
    words = [_words(pieces) for pieces in answers]
    found = [_compared(words[0], words[1])[0]]
    found += [_compared(words[0], other)[1] for other in words[1:]]
    return found


_Words = list[tuple[str, range]]
"""Words of an answer, each with the indices of the pieces that contain it."""


def _words(pieces: Sequence[str]) -> _Words:
    ends = list(accumulate(map(len, pieces)))
    found: _Words = []
    for match in _WORD.finditer("".join(pieces)):
        first = bisect_right(ends, match.start())
        found.append((match.group(), range(first, bisect_right(ends, match.end() - 1) + 1)))
        if len(found) == MOST_WORDS:
            break
    return found


def _compared(one: _Words, other: _Words) -> tuple[list[int], list[int]]:
    matcher = SequenceMatcher(
        None, [word for word, _ in one], [word for word, _ in other], autojunk=False
    )
    left: set[int] = set()
    right: set[int] = set()
    for tag, start, stop, other_start, other_stop in matcher.get_opcodes():
        if tag != "equal":
            left.update(*(numbers for _, numbers in one[start:stop]))
            right.update(*(numbers for _, numbers in other[other_start:other_stop]))
    return sorted(left), sorted(right)

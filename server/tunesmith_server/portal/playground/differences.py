"""Search for words that differ between two answers. The result has the indices of the pieces that
contain words which differ."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import accumulate

MOST_WORDS = 1500
"""Maximum number of words of an answer that are compared."""
MOST_PAIRS = 20_000
"""Maximum number of pairs of equal words, one word from each answer. Two answers with more pairs,
for example because they repeat a phrase, would take too long to compare."""
_WORD = re.compile(r"\S+")


def differing(answers: Sequence[Sequence[str]]) -> list[list[int]]:
    """Compare the first answer with the second, and each other answer with the first. Each answer
    is a list of pieces. For each answer, return the indices of the pieces whose words differ.
    Answers with more than MOST_PAIRS pairs of equal words are not compared, and have no indices."""
    if len(answers) < 2:
        return [[] for _ in answers]
    words = [_words(pieces) for pieces in answers]
    compared = [_compared(words[0], other) for other in words[1:]]
    return [compared[0][0], *(right for _, right in compared)]


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
    counts = Counter(word for word, _ in one)
    if sum(counts[word] for word, _ in other) > MOST_PAIRS:
        return [], []
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

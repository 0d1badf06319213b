"""Words that changed between two completions of the same prompt."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

MOST_WORDS = 300
"""Maximum number of words of a completion that are compared; later words are shown without
marks."""
_MOST_PAIRS = 5_000
"""Maximum number of pairs of equal words, one word from each text. Texts with more pairs are not
compared, because the comparison of texts that repeat a phrase takes cubic time."""
_PIECE = re.compile(r"\s+|\w+|[^\w\s]")


class Piece(NamedTuple):
    """Part of a completion."""

    text: str
    is_new: bool
    """True if the previous completion does not have the words of `text` at this place."""


def pieces(former: str | None, text: str) -> list[Piece]:
    """Return `text` in parts; the parts that `former` does not have are marked. If `former` is
    None, no part is marked."""
    if former is None or former == text:
        return [Piece(text, False)] if text else []
    old, new = (list(_words(each)) for each in (former, text))
    counts = Counter(word for word in old if not word.isspace())
    if sum(counts[word] for word in new) > _MOST_PAIRS:
        return [Piece(text, False)]
    shown = "".join(new)
    found = []
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    for tag, _, _, first, end in matcher.get_opcodes():
        part = "".join(new[first:end])
        if part:
            found.append(Piece(part, tag != "equal" and not part.isspace()))
    rest = text[len(shown) :]
    return [*found, Piece(rest, False)] if rest else found


def _words(text: str) -> Iterator[str]:
    for count, match in enumerate(_PIECE.finditer(text)):
        if count == MOST_WORDS:
            return
        yield match.group()

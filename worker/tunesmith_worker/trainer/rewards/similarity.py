"""Similarity of two texts, 0 to 1, by NLTK (BLEU, GLEU, METEOR) and RapidFuzz (edit distance,
longest common subsequence). METEOR ignores synonyms in this module, because synonyms require a
download of WordNet.

ROUGE: Lin (2004), https://aclanthology.org/W04-1013. GLEU: https://arxiv.org/abs/1609.08144.
METEOR: https://aclanthology.org/W05-0909. BLEU: https://aclanthology.org/P02-1040.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import partial

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

Metric = Callable[[str, str], float]
_WORDS = re.compile(r"\w+")
_TOKENS = re.compile(r"\w+|[^\w\s]")


class _NoSynonyms:
    """Replacement for WordNet without any synonyms."""

    def synsets(self, word: str) -> list[object]:
        return []


def metric(name: str) -> Metric:
    """Return the similarity function of an `evaluation_metric`.

    The returned function takes the candidate and the reference, and returns a number from 0 to 1.

    If neither text has words, the similarity is 1. If only one text has words, the similarity is 0.
    """
    if name.startswith("rouge_"):
        order = name.removeprefix("rouge_")
        return rouge_l if order == "l" else partial(rouge_n, order=int(order))
    if name in ("bleu", "gleu", "meteor"):
        import nltk  # noqa: F401 - imported only if needed: takes most of a second

    return {
        "fuzzy_match": fuzzy_match,
        "cosine": cosine,
        "bleu": bleu,
        "gleu": gleu,
        "meteor": meteor,
    }[name]


def fuzzy_match(candidate: str, reference: str) -> float:
    """Return 1 - (insertions + deletions) / (characters of both texts)."""
    return fuzz.ratio(candidate, reference) / 100


def cosine(candidate: str, reference: str) -> float:
    """Return the cosine similarity of the texts' word counts."""
    ours, theirs = Counter(_words(candidate)), Counter(_words(reference))
    if not ours or not theirs:
        return float(ours == theirs)
    product = sum(count * theirs[word] for word, count in ours.items())
    squares = [sum(count * count for count in counts.values()) for counts in (ours, theirs)]
    return min(1.0, product / math.sqrt(squares[0] * squares[1]))


def bleu(candidate: str, reference: str) -> float:
    """Return the sentence BLEU score of a candidate.

    The n-grams have up to four tokens, but not more tokens than the shorter text. An n-gram length
    without any match is smoothed by Chen and Cherry's third method.
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

    ours, theirs = _TOKENS.findall(candidate), _TOKENS.findall(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    order = min(4, len(ours), len(theirs))
    weights = (1 / order,) * order
    smoothed = SmoothingFunction().method3
    return float(sentence_bleu([theirs], ours, weights=weights, smoothing_function=smoothed))


def gleu(candidate: str, reference: str) -> float:
    """Return the minimum of n-gram precision and recall, over all 1- to 4-grams."""
    from nltk.translate.gleu_score import sentence_gleu

    ours, theirs = _TOKENS.findall(candidate), _TOKENS.findall(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    return float(sentence_gleu([theirs], ours))


def meteor(candidate: str, reference: str) -> float:
    """Return the METEOR score, which matches words exactly or by their stems (Porter)."""
    from nltk.translate.meteor_score import single_meteor_score

    ours, theirs = _TOKENS.findall(candidate), _TOKENS.findall(reference)
    if not ours or not theirs:
        return float(ours == theirs)
    return float(single_meteor_score(theirs, ours, wordnet=_NoSynonyms()))


def rouge_n(candidate: str, reference: str, *, order: int) -> float:
    """Return the F1 score of the word n-grams that both texts share."""
    ours, theirs = (_ngrams(_words(text), order) for text in (candidate, reference))
    return _f1((ours & theirs).total(), ours.total(), theirs.total())


def rouge_l(candidate: str, reference: str) -> float:
    """Return the F1 score of the longest common subsequence of words."""
    ours, theirs = _words(candidate), _words(reference)
    return _f1(LCSseq.similarity(ours, theirs), len(ours), len(theirs))


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.lower())


def _ngrams(words: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(order)), strict=False))


def _f1(shared: int, ours: int, theirs: int) -> float:
    if not ours or not theirs:
        return float(ours == theirs)
    return 2 * shared / (ours + theirs)

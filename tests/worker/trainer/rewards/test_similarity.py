"""Metrics against figures worked out by hand, and against what must hold for any text."""

from __future__ import annotations

import math
import sys
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith_schema.graders import Overlap, Rouge
from tunesmith_worker.trainer.rewards.similarity import metric

METRICS = (*get_args(Overlap), *get_args(Rouge))
SAT, IS = "the cat sat on the mat", "the cat is on the mat"
SPOKE, THEN = "the president spoke to the audience", "the president then spoke to the audience"
KILLED = "police killed the gunman"


@pytest.mark.parametrize(
    ("name", "candidate", "reference", "value"),
    [
        # RapidFuzz's README: one insertion in 14 + 15 characters.
        ("fuzzy_match", "this is a test", "this is a test!", 28 / 29),
        # Counts the 2, cat, sat/is, on, mat 1: product 4 + 3, squares 8 and 8.
        ("cosine", SAT, IS, 7 / 8),
        # 1- to 6-word texts of which 5 of 6 words agree, 3 of 5 pairs, 1 of 4 triples, 0 of 3.
        ("rouge_1", SAT, IS, 5 / 6),
        ("rouge_2", SAT, IS, 3 / 5),
        ("rouge_3", SAT, IS, 1 / 4),
        ("rouge_4", SAT, IS, 0.0),
        ("rouge_4", "a b c d e f", "a b c d e g", 2 / 3),
        ("rouge_5", "a b c d e f", "a b c d e g", 1 / 2),
        ("rouge_5", "a b c", "a b c", 1.0),
        # Precision 1 of 1, recall 1 of 3.
        ("rouge_1", "The", "the cat sat", 2 * 1 * (1 / 3) / (1 + 1 / 3)),
        # Lin (2004), section 3.1: S2 and S3 against S1.
        ("rouge_l", "police kill the gunman", KILLED, 3 / 4),
        ("rouge_l", "the gunman kill police", KILLED, 2 / 4),
        # Matches of all orders 5 + 3 + 1 + 0, n-grams 6 + 5 + 4 + 3.
        ("gleu", SAT, IS, 9 / 18),
        # Precisions 5/6, 4/5, 3/4, 2/3: their product is 1/3.
        ("bleu", "a b c d e f", "a b c d e g", (1 / 3) ** (1 / 4)),
        # 5/6, 3/5, 1/4, and 0/3 smoothed to 1/(2 * 3): sacreBLEU's 37.99.
        ("bleu", SAT, IS, (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** (1 / 4)),
        # All match, brevity penalty exp(1 - 6/3).
        ("bleu", "a b c", "a b c d e f", math.exp(-1)),
        # Banerjee and Lavie (2005), section 2.2: precision 1, recall 6/7, two chunks of six.
        ("meteor", SPOKE, THEN, 60 / 69 * (1 - 0.5 * (2 / 6) ** 3)),
        # One stem in common: one chunk of one.
        ("meteor", "cats", "cat", 0.5),
        ("meteor", "big", "large", 0.0),  # synonyms in WordNet only
    ],
)
def test_a_metric_has_the_value_worked_out_by_hand(
    name: str, candidate: str, reference: str, value: float
) -> None:
    assert metric(name)(candidate, reference) == pytest.approx(value, abs=1e-12)


def test_meteor_reads_no_corpus() -> None:
    metric("meteor")(SAT, IS)
    wordnet = sys.modules["nltk.corpus"].wordnet
    assert type(wordnet).__name__ == "LazyCorpusLoader"  # it takes another class once it has read


TEXTS = st.text(alphabet="ab \n.é5", max_size=24)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(TEXTS, TEXTS)
def test_any_two_texts_are_alike_by_0_to_1(candidate: str, reference: str) -> None:
    for name in METRICS:
        assert 0.0 <= metric(name)(candidate, reference) <= 1.0, name
        if name != "meteor":  # which asks less than all of one chunk
            assert metric(name)(candidate, candidate) == pytest.approx(1.0), name


@pytest.mark.parametrize("name", METRICS)
def test_a_very_long_completion_is_scored(name: str) -> None:
    long = "lorem ipsum dolor sit amet, " * 5_000
    assert 0.0 <= metric(name)(long, SAT) < 0.05

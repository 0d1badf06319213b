"""The number a text gives as its answer."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunesmith_worker.trainer.rewards.math_answer import Number, equal_numbers, find_answer

from .rows import error, score


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 5\nno, wait\n#### 6", "6"),
        ("#### 72 apples for 3 children", "72"),
        ("#### $1,234.50", "1234.5"),
        ("#### -5", "-5"),
        ("#### Step 1\nIt is 9", "1"),
        ("#### Then\nit is 9", "9"),
        (r"so \boxed{41} and \boxed{42}. I used 3 steps", "42"),
        (r"\boxed{\frac{1}{2}}", "1/2"),
        (r"\boxed{-\dfrac{1}{2}}", "-1/2"),
        (r"\boxed{2\frac{1}{2}}", "5/2"),
        (r"\boxed{\tfrac12}", "1/2"),
        (r"\boxed{x = \frac{{3}}{4}}", "4"),  # braces in braces are beyond it
        (r"\boxed{25 \text{ cm}^2}", "25"),
        (r"\boxed{3 \times 10^{5}}", "300000"),
        (r"\boxed{1{,}000}", "1000"),
        (r"\boxed{50\%}", "50"),
        (r"\boxed{\$ 12}", "12"),
        ("The answer is -3.", "-3"),
        ("5 - 3", "3"),
        ("5-3", "3"),
        ("x = - 3", "-3"),
        ("- 5", "-5"),
        ("Two things:\n- 5 apples", "5"),
        ("\u22127", "-7"),
        ("$-5", "-5"),
        ("-$5", "-5"),
        ("€ 5", "5"),
        ("1\u202f000\u202f000 Einwohner", "1000000"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("1 1/2 cups", "3/2"),
        ("3/4", "3/4"),
        ("on 1/2/2024", "2024"),
        ("3.2e5", "320000"),
        ("1e-3", "0.001"),
        (".5", "0.5"),
        ("7.", "7"),
        ("12km", "12"),
        ("x2", None),
        ("答案是5", "5"),
        ("1e999999", None),
        ("1/0", None),
        ("9" * 500, None),
        ("none", None),
        (r"\boxed{\text{A}}", None),
    ],
)
def test_the_answer_is_found(text: str, value: str | None) -> None:
    found = find_answer(text)
    assert (found and found.value) == (value and Fraction(value))


def test_a_format_is_insisted_on() -> None:
    assert find_answer("it is 5", "hashes") is None
    assert find_answer("it is 5", "boxed") is None
    assert find_answer(r"\boxed{5}", "hashes") is None
    assert find_answer("#### 5", "boxed") is None
    assert find_answer(r"\boxed{5", "boxed") is None
    assert find_answer(r"#### 6 or \boxed{5}", "boxed") == Number(Fraction(5))


@pytest.mark.parametrize(
    ("answer", "reference", "tolerance", "equal"),
    [
        ("0.333333", "1/3", 1e-6, True),
        ("0.33333", "1/3", 1e-6, False),
        ("1000001", "1000000", 1e-6, True),
        ("1000002", "1000000", 1e-6, False),
        ("1e-9", "0", 1e-6, False),
        ("9007199254740993", "9007199254740992", 0.0, False),
        ("0.1", "1/10", 0.0, True),
        ("50%", "50", 0.0, True),
        ("50%", "0.5", 0.0, True),
        ("50", "50%", 0.0, True),
        ("0.5", "50%", 0.0, True),
        ("0.5%", "50%", 0.0, False),
    ],
)
def test_numbers_are_compared_relative_to_the_reference(
    answer: str, reference: str, tolerance: float, equal: bool
) -> None:
    numbers = [find_answer(text) for text in (answer, reference)]
    assert numbers[0]
    assert numbers[1]
    assert equal_numbers(numbers[0], numbers[1], tolerance) is equal


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.decimals(-(10**12), 10**12, places=3),
    st.sampled_from(["#### {}", "\\boxed{{{}}}", "{}", "2 + 2 = 5, so it is {}.", "= ${}"]),
)
def test_any_number_is_found_as_it_was_written(number: Fraction, around: str) -> None:
    found = find_answer(around.format(f"{number:,}"))
    assert found is not None
    assert found.value == Fraction(number)


@pytest.mark.parametrize(
    "text",
    [
        "9" * 1_000_000,
        "1,234 " * 160_000,
        "\\boxed{" * 140_000,
        "####" * 250_000,
        "#### 1\n" * 140_000,
        "1" + " " * 1_000_000,
        "\\frac{" * 160_000,
        "1/" * 500_000,
        "-" * 1_000_000,
    ],
    ids=lambda text: text[:7],
)
def test_a_megabyte_is_read_in_no_time(text: str) -> None:
    began = time.process_time()
    find_answer(text)
    assert time.process_time() - began < 2.0  # 0.05 s at most were measured; a square would be days


def test_a_reference_without_a_number_is_an_error_that_names_the_row() -> None:
    found = error("5", {"answer": "many"}, type="math_answer", reference="{{item.answer}}")
    assert found == "math_answer: row 1: the reference has no number: 'many'"
    assert score("5", {"answer": 5}, type="math_answer", reference="{{item.answer}}") == 1.0
    assert score("none", {"answer": 5}, type="math_answer", reference="{{item.answer}}") == 0.0

"""Where rows lie in a batch, read from lengths or from their cumulative sums."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.segments import NO_PREFIX, Segment, Segments


def test_both_ways_of_saying_it_are_one() -> None:
    from_lengths = Segments.from_lengths([3, 1, 5])
    from_cumulative = Segments.from_cumulative(torch.tensor([0, 3, 4, 9]))
    for segments in (from_lengths, from_cumulative):
        assert segments.bounds == (0, 3, 4, 9)
        assert segments.cumulative.dtype == torch.int32
        assert segments.cumulative.tolist() == [0, 3, 4, 9]
        assert segments.rows() == [(0, 3), (3, 4), (4, 9)]
        assert (segments.tokens, segments.longest) == (9, 5)


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [([], []), ([0], []), ([0, 2, 0, 0, 1, 0], [(0, 2), (2, 3)])],
)
def test_rows_without_tokens_are_no_rows(lengths: list[int], rows: list[tuple[int, int]]) -> None:
    segments = Segments.from_lengths(lengths)
    assert segments.rows() == rows
    assert segments.tokens == sum(lengths)
    assert segments.longest == max(lengths, default=0)


def test_it_does_not_follow_a_tensor_that_is_changed_afterwards() -> None:
    """A collator may reuse its buffer: the rows of a batch stay what they were."""
    cumulative = torch.tensor([0, 2, 5])
    segments = Segments.from_cumulative(cumulative)
    cumulative[1] = 4
    assert segments.rows() == [(0, 2), (2, 5)]
    assert segments.cumulative.tolist() == [0, 2, 5]


def test_a_row_says_what_it_sees_before_its_own_tokens() -> None:
    """Prompt, two completions, one without tokens, and a row of its own."""
    prefixes = [NO_PREFIX, (0, 3), (0, 3), (1, 2), NO_PREFIX]
    segments = Segments.from_lengths([3, 2, 0, 1, 2], prefixes=prefixes)
    assert [(one.start, one.stop, one.prefix) for one in segments.segments()] == [
        (0, 3, 0),
        (3, 5, 3),
        (5, 6, 1),
        (6, 8, 0),
    ]
    assert segments.prefixes is not None
    assert segments.prefixes.keys.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 1, 5, 6, 7]
    assert segments.prefixes.cumulative.tolist() == [0, 3, 8, 8, 10, 12]
    assert segments.prefixes.cumulative.dtype == torch.int32
    assert segments.prefixes.longest == 5
    plain = Segments.from_lengths([3, 2])
    assert plain.segments() == [Segment(0, 3), Segment(3, 5)]


@pytest.mark.parametrize("wrong", [(3, 5), (4, 6), (0, 4), (2, 1), (-2, 1), (1, 1), (9, 10)])
def test_a_prefix_is_part_of_one_earlier_row(wrong: tuple[int, int]) -> None:
    """Itself, a later one, two rows, nothing, outside."""
    with pytest.raises(
        ValueError, match=r"the prefix of row 1 must be tokens of a single earlier row"
    ):
        Segments.from_lengths([3, 2, 4], prefixes=[NO_PREFIX, wrong, NO_PREFIX])


def test_every_row_needs_a_prefix_or_none() -> None:
    with pytest.raises(ValueError, match="3 rows need 3 prefixes, got 1"):
        Segments.from_lengths([3, 2, 4], prefixes=[NO_PREFIX])

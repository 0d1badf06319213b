"""Where rows lie in a batch, read from lengths or from their cumulative sums."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.segments import Segments


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

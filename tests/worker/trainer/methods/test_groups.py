"""Which rows make up a group, what sharing its prompt saves, and how groups fill micro-batches."""

from __future__ import annotations

import pytest
import torch

from tunesmith_worker.trainer.methods.groups import (
    GroupBatch,
    GroupLayout,
    GroupOrder,
    GroupRow,
    GroupSizes,
    choose_layout,
    end_to_end,
    groups_of,
    side_by_side,
    sizes_of,
    token_ratio,
)

from .group_rows import GROUPS, make_rows

A, B = (1, 2, 3), (4, 5)


def test_rows_are_grouped_by_what_the_prompt_says_and_not_by_where_they_stand() -> None:
    rows = [GroupRow(p, (7, i)) for i, p in enumerate([A, B, A, (1, 2), B, A])]
    assert [(one.prompt_ids, one.members) for one in groups_of(rows)] == [
        (A, (0, 2, 5)),
        (B, (1, 4)),
        ((1, 2), (3,)),
    ]


def test_rows_without_a_score_are_in_no_group() -> None:
    rows = [GroupRow(A, ()), GroupRow(A, (1,), skip=True), GroupRow(A, (1,))]
    assert [one.members for one in groups_of(rows)] == [(2,)]
    assert groups_of(rows[:2]) == []


def test_each_epoch_has_its_own_order_and_each_attempt_the_same() -> None:
    def order_of(epoch: int, seed: int = 3) -> list[int]:
        order = GroupOrder(9, prompts_per_step=2, num_generations=3, num_iterations=2, seed=seed)
        order.set_epoch(epoch)
        assert len(list(order)) == len(order) == 4 * 2 * 3 * 2
        return list(order)

    first = order_of(0)
    assert first == order_of(0)
    assert first not in (order_of(1), order_of(0, seed=4))
    for start in range(0, len(first), 12):
        step, again = first[start : start + 6], first[start + 6 : start + 12]
        assert step == again == [step[0]] * 3 + [step[3]] * 3
    assert len(set(first)) == 8, "a prompt belongs to one step, and the last step is incomplete"


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has an empty prompt"):
        groups_of([GroupRow(A, (1,)), GroupRow((), (1, 2))])


def test_sharing_goes_by_the_ratio_of_tokens_and_says_so() -> None:
    long, short = GroupSizes(512, (129,) * 8), GroupSizes(2, (129,) * 8)
    assert long.tokens("plain") == 8 * (512 + 128)
    assert long.tokens("shared") == 512 + 8 * 128
    assert token_ratio([long]) == pytest.approx(5120 / 1536)
    assert choose_layout([long]).layout == "shared"
    assert "3.33 times the tokens" in choose_layout([long]).reason
    assert choose_layout([short]).layout == "plain"
    assert choose_layout([short]).reason.endswith(
        "1.01 times the tokens; sharing is faster if this factor is at least 1.05"
    )
    assert choose_layout([GroupSizes(512, (100,))]).layout == "plain"  # a group of one
    assert choose_layout([]).layout == "plain"


def test_the_tokens_counted_are_those_of_the_batches() -> None:
    rows = make_rows()
    sizes = sizes_of(rows)
    for layout in ("shared", "plain"):
        assert sum(one.tokens(layout) for one in sizes) == _tokens(end_to_end(rows, layout, None))


def _tokens(batches: list[GroupBatch]) -> int:
    return sum(batch.input_ids.numel() for batch in batches)


def _read(batch: GroupBatch) -> dict[int, tuple[list[int], int]]:
    """For each scored token's place: all that its source sees, itself included, and the target."""
    ids = batch.input_ids.flatten().tolist()
    bounds = batch.bounds
    assert bounds is not None
    found = {}
    for source, target, place in zip(
        batch.sources.tolist(), batch.targets.tolist(), batch.places.tolist(), strict=True
    ):
        row = max(i for i, start in enumerate(bounds[:-1]) if start <= source < bounds[i + 1])
        first, after = batch.prefixes.ranges[row] if batch.prefixes else (0, 0)
        seen = ids[first:after] + ids[bounds[row] : source + 1]
        assert batch.position_ids is not None
        assert batch.position_ids[0, source] == len(seen) - 1
        found[place] = (seen, target)
    return found


@pytest.mark.parametrize("layout", ["shared", "plain"])
@pytest.mark.parametrize("max_tokens", [None, 1, 150, 300])
def test_every_token_is_scored_once_from_all_before_it(
    layout: GroupLayout, max_tokens: int | None
) -> None:
    rows, width = make_rows(), 150
    batches = end_to_end(rows, layout, max_tokens)
    found: dict[int, tuple[list[int], int]] = {}
    for batch in batches:
        part = _read(batch)
        assert not part.keys() & found.keys()
        found |= part
    expected = {
        number * width + i: (list(row.prompt_ids + row.completion_ids[:i]), token)
        for number, row in enumerate(rows)
        for i, token in enumerate(row.completion_ids)
    }
    assert found == expected
    longest = max(len(row.prompt_ids) + len(row.completion_ids) - 1 for row in rows)
    if max_tokens is not None:
        assert max(batch.input_ids.numel() for batch in batches) <= max(max_tokens, longest)


def test_micro_batches_are_about_equally_full() -> None:
    rows = make_rows([(40, (30,) * 8)] * 6)
    sizes = [batch.input_ids.numel() for batch in end_to_end(rows, "shared", 700)]
    assert sum(sizes) == 6 * (40 + 8 * 29)
    assert len(sizes) == 3
    assert max(sizes) - min(sizes) == 0


def test_a_group_that_does_not_fit_is_split_and_its_prompt_repeated() -> None:
    rows = make_rows([(100, (51,) * 8)])
    batches = end_to_end(rows, "shared", 300)
    assert [batch.input_ids.numel() for batch in batches] == [300, 300]
    one_each = end_to_end(rows, "shared", 100)
    assert [batch.input_ids.numel() for batch in one_each] == [150] * 8
    assert all(batch.prefixes is None for batch in one_each)


def test_completions_of_one_token_are_scored_by_the_prompt_alone() -> None:
    (batch,) = end_to_end([GroupRow(A, (8,)), GroupRow(A, (9,))], "shared", None)
    assert batch.input_ids.tolist() == [[1, 2, 3]]
    assert batch.sources.tolist() == [2, 2]
    assert batch.targets.tolist() == [8, 9]
    split = end_to_end([GroupRow(A, (8,)), GroupRow(A, (9,))], "shared", 2)
    assert [part.targets.tolist() for part in split] == [[8, 9]]


@pytest.mark.parametrize("max_tokens", [None, 1, 400])
def test_side_by_side_each_row_begins_at_its_own_zero(max_tokens: int | None) -> None:
    rows = make_rows()
    batches = side_by_side(rows, max_tokens)
    places = torch.cat([batch.places for batch in batches])
    assert len(places.unique()) == len(places) == sum(sum(group) for _, group in GROUPS)
    for batch in batches:
        assert batch.attention_mask is not None
        ids, length = batch.input_ids.flatten(), batch.input_ids.shape[1]
        assert max_tokens is None or ids.numel() <= max(max_tokens, length)
        for source, target, place in zip(
            batch.sources.tolist(), batch.targets.tolist(), batch.places.tolist(), strict=True
        ):
            row = rows[place // 150]
            first = source // length * length
            seen = ids[first : source + 1].tolist()
            assert seen == list(row.prompt_ids + row.completion_ids[: place % 150])
            assert target == row.completion_ids[place % 150]
            assert batch.attention_mask.flatten()[first : source + 1].all()
    if max_tokens == 1:
        assert all(len(batch.input_ids) == 1 for batch in batches)

"""When curves are called equal."""

from __future__ import annotations

import math

import pytest

from tunesmith_worker.trainer.compare_stock import (
    CurveCheck,
    Curves,
    as_close_as_stock,
    same_in_fp32,
)


def curves(loss: float = 0.0, norm: float = 0.0, last: float | None = None) -> Curves:
    """Four steps, off by the given shares; `last` is the last loss as it is."""
    losses = [one * (1 + loss) for one in (4.0, 3.0, 2.5, 2.0)]
    if last is not None:
        losses[-1] = last
    return Curves(losses=losses, grad_norms=[one * (1 + norm) for one in (0.5, 1.0, 2.0, 1.0)])


def verdict(findings: list[CurveCheck]) -> list[bool]:
    return [finding.passed for finding in findings]


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (curves(), [True, True]),
        (curves(loss=9e-6, norm=9e-6), [True, True]),
        (curves(loss=2e-5), [False, True]),
        (curves(norm=-2e-5), [True, False]),
        (curves(last=math.nan), [False, True]),
    ],
)
def test_fp32_is_held_to_rounding_at_every_step(ours: Curves, expected: list[bool]) -> None:
    assert verdict(same_in_fp32(curves(), ours)) == expected


@pytest.mark.parametrize(
    ("stock", "ours", "expected"),
    [
        (curves(loss=1e-3, norm=1e-2), curves(loss=-1.4e-3, norm=1.4e-2), [True, True]),
        (curves(loss=1e-3, norm=1e-2), curves(loss=1.6e-3, norm=1e-2), [False, True]),
        (curves(loss=1e-3, norm=1e-2), curves(loss=1e-3, norm=-1.6e-2), [True, False]),
        (curves(), curves(loss=1.4e-4, norm=7e-3), [True, True]),  # the floors
        (curves(), curves(loss=1.6e-4, norm=8e-3), [False, False]),
        (curves(loss=1e-3), curves(last=math.nan), [False, True]),
    ],
)
def test_bf16_may_stray_as_stock_does_and_half_as_much_again(
    stock: Curves, ours: Curves, expected: list[bool]
) -> None:
    assert verdict(as_close_as_stock(curves(), stock, ours)) == expected


def test_without_clipping_there_is_no_gradient_norm_to_compare() -> None:
    bare = Curves(losses=[1.0], grad_norms=[])
    assert verdict(same_in_fp32(bare, bare)) == [True]
    assert verdict(as_close_as_stock(bare, bare, bare)) == [True]


def test_a_finding_says_value_and_bound() -> None:
    (loss, norm) = same_in_fp32(curves(), curves(loss=2e-5))
    assert loss.text == "largest relative difference of the loss 2.0e-05 (MORE THAN 1.0e-05)"
    assert norm.text.endswith("gradient norm 0 (within 1.0e-05)")

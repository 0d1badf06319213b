"""What benchmarks/grpo_learns.py makes of its runs. Nothing is trained here."""

from __future__ import annotations

import pytest
from benchmarks import grpo_learns
from benchmarks.grpo_learns_stock import right


def test_pairs_are_compared_up_to_the_shorter() -> None:
    ours = [0.1] * 10 + [0.3] * 5 + [0.9] * 35
    stock = [0.2] * 5 + [0.4] * 10
    found = grpo_learns.paired([(ours, stock)])
    assert found["stock_steps"] == [15]
    assert found["ours_last"] == [pytest.approx(0.2)]
    assert found["stock_last"] == [pytest.approx(0.4)]
    assert found["difference"] == pytest.approx(-0.2)


def test_the_summary_holds_every_seed_to_the_bars() -> None:
    run = {"seed": 1, "wall_seconds": 90.0, "cpu_seconds": 70.0, "rewards": [0.2] * 10 + [0.6] * 10}
    found = grpo_learns.summary(0.32, [run | {"after": 0.5}, run | {"after": 0.6}], 20)
    assert (found["before"], found["after"], found["after_mean"]) == (0.32, [0.5, 0.6], 0.55)
    assert (found["first"], found["last"]) == ([0.2, 0.2], [0.6, 0.6])
    assert "difference" not in found


def test_stock_is_rewarded_as_the_grader_rewards() -> None:
    texts = ["6 + 14 = 20\n#### 20", "#### 21", "no number"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    assert right(completions, answer=["20"] * 3) == [1.0, 0.0, 0.0]

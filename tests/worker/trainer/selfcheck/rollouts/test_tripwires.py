"""What a run's figures alarm of: at the bound, after as many steps as are said, and once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunesmith_worker.trainer.selfcheck.tripwires import RolloutFigures, RolloutTripwires

GOOD = RolloutFigures(
    step=1,
    rollout_gap=1e-3,
    frac_reward_zero_std=0.3,
    truncated_share=0.1,
    entropy=1.0,
    kl=0.05,
    clip_ratio=0.01,
)
BAD: dict[str, tuple[RolloutFigures, int, int]] = {
    # What is wrong; how many good steps come before; at which bad one it is told.
    "rollout_gap": (replace(GOOD, rollout_gap=0.11), 0, 1),
    "equal_rewards": (replace(GOOD, frac_reward_zero_std=1.0), 0, 10),
    "mostly_equal_rewards": (replace(GOOD, frac_reward_zero_std=0.8), 2, 10),
    "all_truncated": (replace(GOOD, truncated_share=1.0), 0, 3),
    "truncated": (replace(GOOD, truncated_share=0.31), 0, 10),
    "entropy": (replace(GOOD, entropy=0.09), 5, 5),
    "kl": (replace(GOOD, kl=1.1), 0, 5),
    "clip_ratio": (replace(GOOD, clip_ratio=0.4), 1, 10),
}


def _steps(wires: RolloutTripwires, figures: list[RolloutFigures]) -> list[tuple[int, str]]:
    return [
        (number, text)
        for number, one in enumerate(figures, start=1)
        for text in wires.step(replace(one, step=number))
    ]


@pytest.mark.parametrize("name", BAD)
def test_an_alarm_comes_when_it_is_due_and_once(name: str) -> None:
    bad, good, due = BAD[name]
    told = _steps(RolloutTripwires("bf16"), [GOOD] * good + [bad] * 40)
    assert [number for number, _ in told] == [good + due]
    assert told[0][1].startswith(f"Step {good + due}: {name}: ")


@pytest.mark.parametrize("name", BAD)
def test_a_good_step_in_between_starts_the_count_again(name: str) -> None:
    bad, good, due = BAD[name]
    told = _steps(RolloutTripwires("bf16"), [GOOD] * good + ([bad] * (due - 1) + [GOOD]) * 4)
    assert told == []


def test_good_steps_and_figures_that_are_not_measured_alarm_of_nothing() -> None:
    assert _steps(RolloutTripwires("fp32"), [GOOD] * 60) == []
    assert _steps(RolloutTripwires("fp32"), [RolloutFigures(step=1)] * 60) == []


def test_the_bound_of_the_gap_goes_by_what_is_computed_in() -> None:
    off = replace(GOOD, rollout_gap=0.05)
    assert not RolloutTripwires("bf16_split_master").step(off)
    (text,) = RolloutTripwires("fp32").step(off)
    assert "is 0.05 (healthy: up to 0.01)" in text
    (text,) = RolloutTripwires("bf16").step(replace(GOOD, rollout_gap=float("nan")))
    assert "is nan (healthy" in text


def test_equal_rewards_of_cut_answers_are_said_to_be_cut() -> None:
    """The grader sees no answer: neither it nor the task is at fault."""
    for cut, said in ((0.1, False), (0.9, True)):
        equal = replace(GOOD, frac_reward_zero_std=1.0, truncated_share=cut)
        wires = RolloutTripwires("bf16")
        told = [text for _, text in _steps(wires, [equal] * 10) if "equal_rewards" in text]
        short = RolloutTripwires("bf16")
        _steps(short, [equal] * 2)
        for text in (*told, *short.end(0)):
            assert (f"{cut:.0%} of the completions reached the length limit" in text) is said
        assert len(told) == 1


def test_a_run_without_any_spread_is_told_at_its_end_unless_it_was_before() -> None:
    equal = BAD["equal_rewards"][0]
    for steps, spreads, told in ((4, 0, 1), (4, 1, 0), (12, 0, 0)):
        wires = RolloutTripwires("bf16")
        _steps(wires, [equal] * steps)
        assert len(wires.end(spreads)) == told


def test_a_resumed_run_counts_on_and_is_not_told_twice() -> None:
    first, second = RolloutTripwires("bf16"), RolloutTripwires("bf16")
    equal, cut = BAD["equal_rewards"][0], BAD["all_truncated"][0]
    assert len(_steps(first, [cut] * 3 + [equal] * 9)) == 1
    second.restore(first.state())
    assert [text.split(": ")[1] for text in second.step(equal)] == ["equal_rewards"]
    assert _steps(second, [cut] * 9) == []


def test_a_warning_of_a_former_name_is_not_given_again() -> None:
    wires, mostly = RolloutTripwires("bf16"), BAD["mostly_equal_rewards"][0]
    wires.restore({"told": ["few_spreads"], "in_a_row": {"few_spreads": 9}, "first": []})
    assert _steps(wires, [mostly] * 12) == []

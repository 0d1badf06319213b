"""A step's completions are graded beside their generation, in order; none of them ends a run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.trainer.rewards import Grading, LocalReward
from tunesmith_worker.trainer.rewards.templates import GraderInput

from .rows import Row, grader, sample

RIGHT = {"type": "math_answer", "reference": "{{item.n}}"}
SHORT = {"type": "length", "target": 4, "limit": 8}
BOTH = {"graders": {"right": RIGHT, "short": SHORT}, "calculate_output": "right + short / 2"}


@pytest.fixture
def rows() -> list[Row]:
    return [Row({"n": number // 2}, number) for number in range(8)]


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Graders wait until what this gives is called."""
    go_on = threading.Event()

    def wait(completion: GraderInput) -> float:
        assert go_on.wait(30)
        return float(completion.sample.text)

    monkeypatch.setattr("tunesmith_worker.trainer.rewards.grading.scorer", lambda grader: wait)
    yield go_on.set
    go_on.set()


def test_scores_and_the_formula_over_them() -> None:
    with Grading(grader("multi", **BOTH)) as grading:
        assert (grading.columns, grading.weights) == (("multi",), (1.0,))
        step = grading.begin([Row({"n": 7}), Row({"n": 8})])
        step.add(1, sample("no", tokens=6), [1])
        step.add(0, sample("it is 7", tokens=3), [1])
        first, second = step.finish()
    assert (first.rewards, dict(first.scores)) == ((1.5,), {"right": 1.0, "short": 1.0})
    assert (second.rewards, dict(second.scores)) == ((0.25,), {"right": 0.0, "short": 0.5})


def test_grading_keeps_places_whatever_the_order(rows: list[Row]) -> None:
    places = list(range(8)) * 3
    with Grading(grader("math_answer", reference="{{item.n}}")) as grading:
        for start in range(3):
            step = grading.begin(rows)
            order = places[start * 8 : start * 8 + 8]
            random.Random(start).shuffle(order)
            for place in order:
                step.add(place, sample(str(place // 2 if place != 5 else 9)), [place])
            rewards = [graded.rewards for graded in step.finish()]
            assert rewards == [(0.0 if place == 5 else 1.0,) for place in range(8)]


def test_adding_a_completion_waits_for_no_grader(
    rows: list[Row], slowly: Callable[[], None]
) -> None:
    with Grading(grader(**RIGHT)) as grading:
        step = grading.begin(rows)
        began = time.monotonic()
        for place in reversed(range(8)):
            step.add(place, sample(str(place)), [])
        assert time.monotonic() - began < 10  # one grader would have waited for 30 s
        slowly()
        assert [graded.rewards for graded in step.finish()] == [(float(n),) for n in range(8)]


def test_what_a_grader_cannot_score_is_none_and_counted(rows: list[Row]) -> None:
    rows[3] = Row({"m": 1}, 33)
    with Grading(grader("multi", **BOTH)) as grading:
        step = grading.begin(rows)
        for place in range(8):
            step.add(place, sample("1"), [])
        graded = step.finish()
        assert graded[3].rewards == (None,)
        assert dict(graded[3].scores) == {"right": None, "short": 0.75}
        assert graded[3].errors == ("right: row 33: {{item.n}} is missing: the row has m",)
        assert [one.rewards[0] is None for one in graded].count(True) == 1


def test_a_grader_that_raises_anything_ends_no_run(
    rows: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(completion: GraderInput) -> float:
        if completion.sample.text == "bad":
            raise KeyError("what")
        return 1.0

    monkeypatch.setattr("tunesmith_worker.trainer.rewards.grading.scorer", lambda grader: broken)
    with Grading(grader(**RIGHT)) as grading:
        step = grading.begin(rows[:2])
        step.add(0, sample("bad"), [])
        step.add(1, sample("good"), [])
        assert [one.rewards for one in step.finish()] == [(None,), (1.0,)]


def test_a_formula_without_a_value_is_an_error_of_the_sample(rows: list[Row]) -> None:
    halves = {**BOTH, "calculate_output": "1 / right"}
    with Grading(grader("multi", **halves)) as grading:
        step = grading.begin(rows[:2])
        step.add(0, sample("0"), [])
        step.add(1, sample("5"), [])
        first, second = step.finish()
    assert first.rewards == (1.0,)
    assert second.rewards == (None,)
    assert "division by zero, with right=0" in second.errors[0]


def test_three_steps_of_which_nothing_can_be_scored_end_the_run(rows: list[Row]) -> None:
    def finish(grading: Grading, *, trains: bool = True) -> None:
        step = grading.begin(rows, trains=trains)
        for place in range(8):
            step.add(place, sample(f"answer {place}"), [])
        assert all(one.rewards == (None,) for one in step.finish())

    with Grading(grader(**{**RIGHT, "reference": "{{item.answer}}"})) as grading:
        for _ in range(4):
            finish(grading, trains=False)  # an evaluation is worth no job
        for _ in range(2):
            finish(grading)
        with pytest.raises(RunError) as caught:
            finish(grading)
    failure = caught.value.failure
    assert (failure.category, failure.code) == ("grader", "grader_failed")
    assert "row 0, completion 'answer 0'" in failure.message
    assert "{{item.answer}} is missing: the row has n" in failure.message


def test_functions_that_never_give_a_reward_end_the_run(rows: list[Row]) -> None:
    def nothing(completions: list[str], **_: object) -> list[None]:
        return [None for _ in completions]

    with Grading(None, [LocalReward(name="nothing", function=nothing)]) as grading:
        for step in range(3):
            round_ = grading.begin(rows)
            for place in range(8):
                round_.add(place, sample("4"), [])
            if step < 2:
                round_.finish()
        with pytest.raises(RunError, match="the reward functions returned None or NaN") as caught:
            round_.finish()
    assert (caught.value.failure.hint or "").startswith("Fix the reward function")


def test_names_of_rewards_are_told_apart() -> None:
    local = LocalReward(name="right", function=lambda **_: [])
    for given, functions in ((grader("multi", **BOTH), [local]), (None, [local, local])):
        with pytest.raises(RunError, match="Two rewards have the name 'right'"):
            Grading(given, functions)
    with pytest.raises(RunError, match="The run has no reward"):
        Grading(None)


def test_closing_gives_up_what_waits(rows: list[Row], slowly: Callable[[], None]) -> None:
    grading = Grading(grader(**RIGHT))
    step = grading.begin(rows)
    for place in range(8):
        step.add(place, sample("1"), [])
    threading.Timer(0.05, slowly).start()
    grading.close()
    assert "grading" not in {thread.name.partition("_")[0] for thread in threading.enumerate()}
    with pytest.raises(BaseException, match=r"^$") as caught:
        step.finish()
    assert type(caught.value).__name__ == "CancelledError"

"""The evaluation's time: its parts, short runs, and a request to stop."""

from __future__ import annotations

import pytest

from tunesmith_worker.trainer.evaluation.budget import LEAST_SECONDS, SHARE, Budget


class Time:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.stops = False
        self.marks = 0

    def mark(self) -> None:
        self.marks += 1

    def budget(self, job_seconds: float) -> Budget:
        return Budget(
            job_seconds, stop_requested=lambda: self.stops, mark=self.mark, now=lambda: self.now
        )


def test_a_long_job_gives_its_share_and_a_short_one_the_minimum() -> None:
    assert Time().budget(1000.0).seconds == pytest.approx(SHARE * 1000.0)
    assert Time().budget(1000.0).seconds < 100.0
    assert Time().budget(1.0).seconds == LEAST_SECONDS


def test_a_part_ends_after_its_share_of_the_time_that_is_left() -> None:
    time = Time()
    budget = time.budget(1000.0)
    over = budget.part(0.5)
    time.now += 0.49 * budget.seconds
    assert not over()
    time.now += 0.02 * budget.seconds
    assert over()
    assert budget.left == pytest.approx(0.49 * budget.seconds)
    second = budget.part(1.0)
    time.now += budget.seconds
    assert second()
    assert budget.left == 0.0
    assert time.marks > 0


def test_a_request_to_stop_ends_all_parts() -> None:
    time = Time()
    budget = time.budget(1000.0)
    over = budget.part(0.9)
    assert not over()
    time.stops = True
    assert over()
    assert budget.left == 0.0

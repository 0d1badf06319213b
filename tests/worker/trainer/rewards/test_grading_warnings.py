"""How often a run says that completions cannot be scored."""

from __future__ import annotations

from tunesmith_worker.trainer.rewards import Graded, GradingWarnings


def step(failed: int, name: str = "a") -> list[Graded]:
    good = Graded(rewards=(1.0,), scores={})
    bad = Graded(rewards=(None,), scores={}, errors=(f"{name}: no number", f"{name}: nor a text"))
    return [good] * (16 - failed) + [bad] * failed


def test_it_is_said_once_and_again_when_it_is_twice_as_many() -> None:
    told = GradingWarnings("Step")
    said = [told.sentences(number, step(n)) for number, n in enumerate([0, 3, 3, 5, 0, 6, 9, 12])]
    assert [len(one) for one in said] == [0, 1, 0, 0, 0, 1, 0, 1]
    assert said[5] == [
        "Step 5: 6 of 16 completions could not be scored and are ignored. "
        "First reason: a: nor a text"
    ]


def test_each_grader_has_its_own_count() -> None:
    told = GradingWarnings("Step")
    assert len(told.sentences(1, step(8))) == 1
    assert len(told.sentences(2, step(1, "b"))) == 1
    assert told.sentences(3, step(9) + step(1, "b")) == []

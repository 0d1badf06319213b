"""Evaluations of a reinforcement run are comparable: equal models get equal rewards."""

from __future__ import annotations

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

from .test_exactness import ASKED, BASE, GRPO, LENGTH


def test_each_evaluation_uses_the_same_seeds(make_run: MakeRun) -> None:
    """The model does not change, so neither does its reward."""
    recipe = BASE | {"grpo": GRPO, "max_steps": 4, "learning_rate": 1e-20, "eval_steps": 1}
    run = make_run(ASKED, valid=ASKED[:3], recipe=recipe, method="reinforcement", grader=LENGTH)
    assert main(run) == 0, read_result(run).error
    metrics = event_data(run, EventKind.METRICS)
    rewards = [point["valid_reward"] for point in metrics if "valid_reward" in point]
    assert len(rewards) >= 4
    assert len(set(rewards)) == 1, rewards

"""Reinforcement makes what is rewarded more likely: the whole way of a run, on a random model."""

from __future__ import annotations

from statistics import fmean

from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

ASKED = [{"question": f"How much is {a} plus {a}?"} for a in range(6)]
SHORT = {"type": "length", "unit": "characters", "target": 0, "limit": 40}
"""A random model's completions differ in it, though all have as many tokens."""


def test_the_reward_rises(make_run: MakeRun) -> None:
    run = make_run(
        ASKED,
        method="reinforcement",
        grader=SHORT,
        recipe={
            "max_steps": 12,
            "tuning": "full",
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "self_check": False,
            "grpo": {"num_generations": 8, "prompts_per_step": 6, "max_completion_length": 8},
        },
    )
    assert main(run) == 0, read_result(run).error
    rewards = [point["reward"] for point in event_data(run, EventKind.METRICS) if "reward" in point]
    assert len(rewards) == 12
    # From 0.66 to 0.84. With the advantage's sign flipped it falls.
    assert fmean(rewards[-3:]) > fmean(rewards[:3]) + 0.1

"""Families outside our engine's table learn by reinforcement, and both sides agree on log-probs."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest
from benchmarks.models.configs import small_config
from benchmarks.models.train import build

from tests.tiny_model import make_tiny_tokenizer
from tests.worker.conftest import MakeRun
from tests.worker.runs import event_data, read_events, read_result
from tunesmith_schema import EventKind
from tunesmith_worker.trainer.run import main

ASKED = [{"question": f"How much is {a} plus {a}?"} for a in (1, 22, 3, 444)]
SHORT = {"type": "length", "unit": "characters", "target": 0, "limit": 40}
FAMILIES = (
    *("qwen3_moe", "mixtral", "gpt_oss", "glm4", "qwen3_5_text", "gemma4_text", "lfm2"),
    *("gpt2", "granitemoehybrid"),
)
STEPS = 10
GAP = 1e-4
"""Tolerance of the mean |log-prob of the rollout - log-prob of the trainer| in fp32."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_reward_does_not_fall_and_log_probs_agree(
    make_run: MakeRun, tmp_path: Path, family: str
) -> None:
    tokenizer = make_tiny_tokenizer()
    build(tmp_path / family, small_config(family, len(tokenizer)), tokenizer)
    run = make_run(
        ASKED,
        model_path=str(tmp_path / family),
        method="reinforcement",
        grader=SHORT,
        recipe={
            "max_steps": STEPS,
            "tuning": "full",
            "learning_rate": 1e-2,
            "lr_scheduler_type": "constant",
            "logging_steps": 1,
            "self_check": True,
            "grpo": {"num_generations": 8, "prompts_per_step": 4, "max_completion_length": 8},
        },
    )
    assert main(run) == 0, read_result(run).error
    points = [point for point in event_data(run, EventKind.METRICS) if "reward" in point]
    rewards = [point["reward"] for point in points]
    assert len(rewards) == STEPS
    assert fmean(rewards[-3:]) >= fmean(rewards[:3])
    assert max(point["rollout_gap"] for point in points) <= GAP
    (engine,) = [c for c in event_data(run, EventKind.CHOICE) if c["name"] == "rollout_engine"]
    assert engine["value"] in ("native", "transformers")
    messages = [event.message for event in read_events(run)]
    slower = any(message.startswith("Generation is slow:") for message in messages)
    assert slower == (engine["value"] == "transformers")

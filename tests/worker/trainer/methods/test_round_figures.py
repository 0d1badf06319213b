"""What the run report is told of a round of completions."""

from __future__ import annotations

import pytest
import torch

from tunesmith_worker.engine.rollout import Completion, FinishReason, RolloutFigures
from tunesmith_worker.trainer.methods.groups import GroupRow
from tunesmith_worker.trainer.methods.grpo_metrics import round_figures, zero_equal_groups
from tunesmith_worker.trainer.report.rollouts import RewardCounts
from tunesmith_worker.trainer.rewards import Graded


@pytest.mark.parametrize(
    ("rewards", "counts", "left"),
    [
        ([1.0, 0.0, 0.5, 0.5], (2, 1, 0), [0.7, -0.7, 0.0, 0.0]),
        ([1.0, 0.0, 0.5, None], (2, 1, 1), [0.7, -0.7, 0.0, 0.0]),
        ([1.0, 0.0, None, None], (1, 0, 2), [0.7, -0.7, 0.0, 0.0]),
        ([None, None, None, None], (0, 0, 4), [0.0, 0.0, 0.0, 0.0]),
        ([0.1, 0.1, 0.3, 0.2], (2, 1, 0), [0.0, 0.0, 1e-4, -1e-4]),
    ],
)
def test_groups_that_teach_nothing_are_counted_and_have_no_advantage(
    rewards: list[float | None], counts: tuple[int, int, int], left: list[float]
) -> None:
    """A group without rewards is not one of equal ones."""
    graded = [Graded(rewards=(one,), scores={}) for one in rewards]
    advantages = torch.tensor([0.7, -0.7, 1e-4, -1e-4])
    found = zero_equal_groups(graded, advantages, 2)
    assert (found.groups, found.equal_groups, found.ungraded) == counts
    assert advantages.tolist() == torch.tensor(left).tolist()


def test_a_round_is_counted_by_completion_and_by_group() -> None:
    rows = [
        GroupRow((1, 2, 3) if place < 2 else (1, 2, 4), tuple(range(length)))
        for place, length in enumerate((2, 5, 3, 3))
    ]
    completions = [
        Completion(
            token_ids=[*row.completion_ids],
            sampling_logprobs=[],
            policy_logprobs=[],
            finish_reason=FinishReason("length" if len(row.completion_ids) == 5 else "stop"),
        )
        for row in rows
    ]
    drawing = RolloutFigures(decode_steps=5, graph_steps=3)
    rewards = RewardCounts(groups=2, equal_groups=1, ungraded=1)
    found = round_figures(
        rows, completions, rewards=rewards, num_iterations=1, engine=drawing,
        engine_name="native", weights="in_place", layout="shared",
    )  # fmt: skip
    assert (found.completions, found.generated_tokens, found.longest) == (4, 13, 5)
    assert (found.truncated, found.rewards) == (1, rewards)
    assert (found.decode_steps, found.graph_steps) == (5, 3)
    # A completion's last token is not computed: 9 of them, after prompts of 3 once or twice.
    assert (found.trained_slots, found.plain_slots) == (9 + 6, 9 + 12)

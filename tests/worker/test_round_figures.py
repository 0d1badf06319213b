"""What the run report is told of a round of completions."""

from __future__ import annotations

from tunesmith_worker.rollout import Completion, FinishReason, RolloutFigures
from tunesmith_worker.trainers.groups import RowOfGroup
from tunesmith_worker.trainers.round_figures import round_figures


def test_a_round_is_counted_by_completion_and_by_group() -> None:
    rows = [
        RowOfGroup((1, 2, 3) if place < 2 else (1, 2, 4), tuple(range(length)))
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
    found = round_figures(
        rows, completions, [0.7, -0.7, 0.0, 0.0], [True, True, True, False],
        num_generations=2, num_iterations=1, drawing=drawing, weights="in_place", layout="shared",
    )  # fmt: skip
    assert (found.completions, found.generated_tokens, found.longest) == (4, 13, 5)
    assert (found.truncated, found.groups, found.zero_std_groups) == (1, 2, 1)
    assert found.ungraded == 1
    found = round_figures(
        rows, completions, [0.7, -0.7, 0.0, 0.0], [True, True, False, False],
        num_generations=2, num_iterations=1, drawing=drawing, weights="in_place", layout="shared",
    )  # fmt: skip
    assert (found.ungraded, found.groups, found.zero_std_groups) == (2, 1, 0), "none are not equal"
    assert (found.decode_steps, found.graph_steps) == (5, 3)
    # A completion's last token is not computed: 9 of them, after prompts of 3 once or twice.
    assert (found.trained_slots, found.plain_slots) == (9 + 6, 9 + 12)

"""The verdict of an evaluation without a comparison, and two metrics in one evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from tunesmith_schema import Evaluation, ModelScores
from tunesmith_schema.evaluation import ModelName
from tunesmith_worker.trainer.evaluation.results import combined, conclude


def evaluation(models: list[ModelScores]) -> Evaluation:
    return Evaluation(
        verdict="",
        metric="reward",
        on="validation_file",
        file="v",
        rows=9,
        rows_available=9,
        models=models,
    )


@pytest.mark.parametrize(
    ("values", "models", "reason"),
    [
        ({"tuned": 0.5}, ["tuned"], "reward 0.5"),
        ({"tuned": 0.5}, ["tuned", "base"], "the base model was left out"),
        ({"base": 0.5}, ["tuned", "base", "last"], "the tuned model was left out"),
        ({"model": 0.5}, ["model", "against"], "the second model was left out"),
        (
            {"tuned": math.nan, "base": 0.5},
            ["tuned", "base"],
            "no row has a reward for both models",
        ),
    ],
)
def test_the_reason_of_a_missing_comparison_is_named(
    values: Mapping[ModelName, float], models: Sequence[ModelName], reason: str
) -> None:
    found = evaluation([])
    assert conclude(found, values, models).verdict == f"not compared: {reason}"


def test_a_model_that_one_metric_left_out_keeps_its_other_scores() -> None:
    rewards = evaluation([ModelScores(model="model", reward=1.0)])
    losses = evaluation(
        [ModelScores(model="model", loss=0.5), ModelScores(model="against", loss=0.7)]
    )
    first, second = combined(rewards, losses).models
    assert (first.reward, first.loss, second.loss) == (1.0, 0.5, 0.7)

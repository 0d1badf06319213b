"""The evaluation's time covers every compared model, also models that are slower than the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from tests.tiny_model import make_tiny_tokenizer
from tunesmith_schema import Evaluation
from tunesmith_schema.evaluation import ModelName
from tunesmith_worker.engine.evaluation.answers import Answer
from tunesmith_worker.engine.evaluation.scores import RowScores, ScoredRow
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.evaluation import supervised
from tunesmith_worker.trainer.evaluation.budget import Budget
from tunesmith_worker.trainer.evaluation.models import EvaluatedModel
from tunesmith_worker.trainer.evaluation.reinforcement import Answered, ReinforcementEvaluation
from tunesmith_worker.trainer.evaluation.supervised import EvaluationRows, SupervisedEvaluation

JOB_SECONDS = 1000.0
ROWS = 400


class Time:
    now = 0.0


def run(
    monkeypatch: pytest.MonkeyPatch, seconds_per_row: dict[ModelName, float]
) -> tuple[Evaluation, float]:
    time = Time()

    def score(
        model: ModelName,
        rows: Sequence[ScoredRow],
        enough: Callable[[int], bool] = lambda done: False,
        **_: Any,
    ) -> RowScores:
        done = 0
        while done < len(rows) and not (done and enough(done)):
            group = min(8, len(rows) - done)
            time.now += group * seconds_per_row[model]
            done += group
        ones = np.ones(done, dtype=np.int64)
        return RowScores(nll=np.linspace(1.0, 2.0, done), tokens=ones, correct=ones)

    def answer(model: ModelName, prompts: Sequence[Any], max_seconds: float, **_: Any) -> list[Any]:
        time.now += max_seconds
        return [Answer(token_ids=[1], ended=True) for _ in prompts]

    monkeypatch.setattr(supervised, "score_rows", score)
    monkeypatch.setattr(supervised, "greedy_answers", answer)
    rows = datasets.Dataset.from_dict(
        {"input_ids": [[1, 2, 3]] * ROWS, "labels": [[-100, 2, 3]] * ROWS}
    )
    evaluation = SupervisedEvaluation(
        EvaluationRows(
            dataset=rows, numbers=pa.array(range(ROWS)), on="validation_file", file="v.jsonl"
        ),
        make_tiny_tokenizer(),
        seed=0,
        max_tokens=64,
        end_tokens=frozenset(),
        autocast=nullcontext,
    )

    def use(name: ModelName) -> Callable[[], Any]:
        @contextmanager
        def used() -> Iterator[ModelName]:
            yield name

        return used

    models = [EvaluatedModel(name=name, step=1, use=use(name)) for name in seconds_per_row]
    budget = Budget(JOB_SECONDS, now=lambda: time.now)
    return evaluation.evaluate(models, budget), time.now


def test_a_slow_second_model_shortens_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation, spent = run(monkeypatch, {"tuned": 0.05, "base": 0.5})
    assert spent < 0.1 * JOB_SECONDS
    assert 8 <= evaluation.rows < ROWS
    assert f"{ROWS - evaluation.rows} of {ROWS} rows" in evaluation.left_out
    assert len(evaluation.comparisons) == 1


def test_a_third_model_without_time_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation, spent = run(monkeypatch, {"tuned": 1.0, "base": 5.0, "best": 5.0})
    assert spent < 0.1 * JOB_SECONDS
    assert "best: no time was left" in evaluation.left_out
    assert [one.model for one in evaluation.models] == ["tuned", "base"]


def test_both_models_of_an_evaluation_on_demand_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    evaluation, _ = run(monkeypatch, {"model": 30.0, "against": 30.0})
    assert [one.model for one in evaluation.models] == ["model", "against"]
    assert (evaluation.rows, len(evaluation.comparisons)) == (8, 1)


def test_equally_fast_models_have_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation, _ = run(monkeypatch, {"tuned": 0.01, "base": 0.012, "best": 0.01})
    assert evaluation.rows == ROWS
    assert evaluation.left_out == []


def test_a_slow_second_model_shortens_a_comparison_of_rewards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time, speeds = Time(), {"tuned": 0.05, "base": 1.0}

    class Engine:
        def __init__(self, model: str) -> None:
            self._model = model

        def generate(self, requests: Sequence[Any]) -> list[str]:
            time.now += len(requests) * speeds[self._model]
            return ["a"] * len(requests)

    def grade(self: Any, grading: Any, prompts: Sequence[Any], made: Sequence[str]) -> Answered:
        assert len(prompts) == len(made)
        return Answered(texts=[*made], rewards=[1.0] * len(made), scores={})

    monkeypatch.setattr(ReinforcementEvaluation, "_grade", grade)
    prompts = [PromptRow(number=n, prompt_ids=(1,), item={}, text="a") for n in range(200)]
    engine: Any = Engine
    no_grading: Any = nullcontext
    evaluation = ReinforcementEvaluation(
        prompts,
        None,
        engine,
        no_grading,
        on="validation_file",
        file="v.jsonl",
        seed=0,
        max_tokens=1,
        stop_tokens=frozenset(),
    )
    models = [
        EvaluatedModel(name=name, step=1, use=lambda name=name: nullcontext(name))  # type: ignore[misc]  # a default binds the name
        for name in ("tuned", "base")
    ]
    budget = Budget(JOB_SECONDS, now=lambda: time.now)
    evaluated = evaluation.evaluate(models, budget)
    assert time.now < 0.1 * JOB_SECONDS
    assert 8 <= evaluated.rows < 200
    assert len(evaluated.comparisons) == 1

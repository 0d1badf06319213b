"""Evaluation of a reinforcement run: rewards of greedy answers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from tunesmith_schema import EvaluatedAnswer, Evaluation, ModelScores
from tunesmith_schema.evaluation import MAX_ANSWERS, EvaluatedOn, ModelName
from tunesmith_worker.engine.evaluation.compare import compare
from tunesmith_worker.engine.rollout import Completion, Request, RolloutEngine, SamplingParams
from tunesmith_worker.rundir.events import finite
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.rewards import CompletionText, Graded, Grading

from .budget import ALWAYS, LATER, NO_TIME, Budget
from .models import EvaluatedModel, LeftOut
from .results import comparison, conclude, pairs, storable

Untyped = Any  # Any: transformers is not typed

MAX_PROMPTS = 200
_FIRST = 8
"""Number of prompts that are always evaluated."""


@dataclass(frozen=True, kw_only=True)
class Answered:
    """Graded answers of one model, in the order of the prompts."""

    texts: list[str]
    rewards: list[float]
    """Weighted rewards; NaN for an answer that no grader could score."""
    scores: dict[str, list[float]]
    """Available scores of each grader."""

    @property
    def reward(self) -> float:
        """Mean reward; NaN if no answer has a reward."""
        known = [reward for reward in self.rewards if not math.isnan(reward)]
        return fmean(known) if known else math.nan


class ReinforcementEvaluation:
    def __init__(
        self,
        prompts: Sequence[PromptRow],
        tokenizer: Untyped,
        make_engine: Callable[[Untyped], RolloutEngine],
        make_grading: Callable[[], Grading],
        *,
        on: EvaluatedOn,
        file: str,
        seed: int,
        max_tokens: int,
        stop_tokens: frozenset[int],
        metrics: int = 1,
        dropped: int = 0,
    ) -> None:
        """`make_engine`: function that returns the rollout engine of a model.

        `max_tokens`: maximum tokens of an answer. `metrics`: number of compared metrics; a larger
        number gives wider confidence intervals. `dropped`: number of prompts that are too long for
        the model.
        """
        self._metrics, self._dropped = metrics, dropped
        self._prompts, self._tokenizer = prompts, tokenizer
        self._make_engine, self._make_grading = make_engine, make_grading
        self._on: EvaluatedOn = on
        self._file, self._seed = file, seed
        self._max_tokens, self._stop_tokens = max_tokens, stop_tokens

    def evaluate(self, models: Sequence[EvaluatedModel], budget: Budget) -> Evaluation:
        """Answer the same prompts with all models and grade the answers."""
        available = len(self._prompts)
        chosen = random.Random(f"evaluation {self._seed}").sample(
            range(available), min(MAX_PROMPTS, available)
        )
        prompts = [self._prompts[place] for place in chosen]
        completed: dict[ModelName, list[Completion]] = {}
        left_out: list[str] = []
        cost = 0.0  # seconds for the answers of the first model
        for place, model in enumerate(models):
            if place >= ALWAYS and budget.left == 0.0:
                left_out.append(f"{model.name}: {NO_TIME}")
                continue
            share = 1 / (len(models) - place)
            enough = (
                budget.at_most(max(LATER * cost, share * budget.left))
                if completed
                else budget.part(share)
            )
            try:
                began = budget.spent
                completed[model.name] = self._answer(model, prompts, enough)
            except LeftOut as reason:
                left_out.append(f"{model.name}: {reason}")
                continue
            cost = cost or budget.spent - began
            prompts = prompts[: len(completed[model.name])]
        answered: dict[ModelName, Answered] = {}
        with self._make_grading() as grading:
            for name, completions in completed.items():
                answered[name] = self._grade(grading, prompts, completions[: len(prompts)])
        if self._dropped:
            left_out.append(f"{self._dropped} prompts that are too long for the model")
        if len(prompts) < available:
            left_out.append(f"{available - len(prompts)} of {available} prompts")
        return self._result(models, answered, prompts, left_out)

    def _answer(
        self, model: EvaluatedModel, prompts: Sequence[PromptRow], enough: Callable[[], bool]
    ) -> list[Completion]:
        """Return a model's completions.

        The function keeps no reference to the model, so the next model can use the memory.
        """
        with model.use() as used:
            return self._complete(self._make_engine(used), prompts, enough)

    def _complete(
        self, engine: RolloutEngine, prompts: Sequence[PromptRow], enough: Callable[[], bool]
    ) -> list[Completion]:
        done: list[Completion] = []
        while len(done) < len(prompts) and not (done and enough()):
            group = prompts[len(done) : len(done) + max(_FIRST, len(done) // 2)]
            done += engine.generate([self._request(prompt) for prompt in group])
        return done

    def _request(self, prompt: PromptRow) -> Request:
        return Request(
            prompt_ids=prompt.prompt_ids,
            max_tokens=self._max_tokens,
            seed=0,
            sampling=SamplingParams(temperature=0.0),
            stop_token_ids=self._stop_tokens,
        )

    def _grade(
        self, grading: Grading, prompts: Sequence[PromptRow], completions: Sequence[Completion]
    ) -> Answered:
        round_ = grading.begin(prompts, trains=False)
        texts = []
        for place, completion in enumerate(completions):
            text = self._tokenizer.decode(completion.token_ids, skip_special_tokens=True)
            sample = CompletionText(text, len(completion.token_ids), completion.finish_reason.value)
            round_.add(place, sample, completion.token_ids)
            texts.append(storable(text))
        graded = round_.finish()
        scores: dict[str, list[float]] = {}
        for result in graded:
            for name, score in result.scores.items():
                if score is not None:
                    scores.setdefault(name, []).append(score)
        return Answered(
            texts=texts, rewards=[_reward(grading, result) for result in graded], scores=scores
        )

    def _result(
        self,
        models: Sequence[EvaluatedModel],
        answered: dict[ModelName, Answered],
        prompts: Sequence[PromptRow],
        left_out: Sequence[str],
    ) -> Evaluation:
        compared = pairs([*answered])
        comparisons = []
        for first, second in compared:
            gains = np.array(answered[first].rewards) - np.array(answered[second].rewards)
            gains = gains[~np.isnan(gains)]
            if len(gains):
                difference = compare(gains, seed=self._seed, of=len(compared) * self._metrics)
                comparisons.append(comparison((first, second), difference, self._on, "reward"))
        evaluation = Evaluation(
            verdict="",
            metric="reward",
            on=self._on,
            file=self._file,
            rows=len(prompts),
            rows_available=len(self._prompts),
            models=[
                ModelScores(
                    model=model.name,
                    step=model.step,
                    reward=finite(answered[model.name].reward),
                    scores={
                        name: fmean(values)
                        for name, values in answered[model.name].scores.items()
                        if math.isfinite(fmean(values))
                    },
                )
                for model in models
                if model.name in answered
            ],
            comparisons=comparisons,
            answers=[
                EvaluatedAnswer(
                    row=prompt.number,
                    prompt=storable(prompt.text),
                    answers={name: result.texts[place] for name, result in answered.items()},
                    rewards={
                        name: finite(result.rewards[place]) for name, result in answered.items()
                    },
                )
                for place, prompt in enumerate(prompts[:MAX_ANSWERS])
            ],
            left_out=list(left_out),
        )
        return conclude(
            evaluation,
            {name: result.reward for name, result in answered.items()},
            [model.name for model in models],
        )


def _reward(grading: Grading, graded: Graded) -> float:
    known = [
        weight * reward
        for weight, reward in zip(grading.weights, graded.rewards, strict=True)
        if reward is not None
    ]
    return sum(known) if known else math.nan

"""Evaluation of a supervised run: losses on rows, and greedy answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tunesmith_schema import EvaluatedAnswer, Evaluation, ModelScores
from tunesmith_schema.evaluation import MAX_ANSWERS, EvaluatedOn, ModelName
from tunesmith_worker.engine.evaluation.answers import greedy_answers
from tunesmith_worker.engine.evaluation.compare import compare_losses
from tunesmith_worker.engine.evaluation.scores import IGNORED, RowScores, ScoredRow, score_rows
from tunesmith_worker.rundir.events import finite

from .budget import ALWAYS, LATER, NO_TIME, Budget
from .models import EvaluatedModel, LeftOut
from .results import comparison, conclude, pairs, storable

Untyped = Any  # Any: transformers and datasets are not typed

MAX_ROWS = 1000
"""Maximum number of rows to evaluate."""
MAX_TRAINING_ROWS = 200
"""Maximum number of rows to evaluate if the rows come from the training file."""
MAX_ANSWER_TOKENS = 128
_SCORING = 0.6
"""Share of the evaluation's time for computing losses; the rest of the time is for generating
answers."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRows:
    """Tokenised rows that an evaluation may use."""

    dataset: Untyped
    """`datasets.Dataset` with the columns `input_ids` and `labels`, not packed."""
    numbers: Untyped
    """Pyarrow column with the number of each row in its file."""
    on: EvaluatedOn
    file: str
    """User's name of the file."""


class SupervisedEvaluation:
    def __init__(
        self,
        rows: EvaluationRows,
        tokenizer: Untyped,
        *,
        seed: int,
        max_tokens: int,
        end_tokens: frozenset[int],
        autocast: Callable[[], AbstractContextManager[Any]],
        metrics: int = 1,
        dropped: int = 0,
    ) -> None:
        """`max_tokens`: see `score_rows`.

        `metrics`: number of compared metrics; a larger number gives wider confidence intervals.
        `dropped`: number of rows that are too long for the model.
        """
        self._metrics, self._dropped = metrics, dropped
        self._rows, self._tokenizer, self._seed = rows, tokenizer, seed
        self._max_tokens, self._end_tokens, self._autocast = max_tokens, end_tokens, autocast

    def evaluate(self, models: Sequence[EvaluatedModel], budget: Budget) -> Evaluation:
        """Score the models on the same rows. If a model cannot be evaluated, leave the model
        out."""
        chosen, rows = self._sample()
        examples = [_Example.of(row) for row in rows[:MAX_ANSWERS]]
        scores: dict[ModelName, RowScores] = {}
        answers: dict[ModelName, _Answers] = {}
        left_out: list[str] = []
        cost: float | None = None
        for place, model in enumerate(models):
            waiting = len(models) - place
            if place >= ALWAYS and budget.left == 0.0:
                left_out.append(f"{model.name}: {NO_TIME}")
                continue
            try:
                measured = self._measure(model, rows, examples, budget, waiting, cost)
            except LeftOut as reason:
                left_out.append(f"{model.name}: {reason}")
                continue
            scores[model.name], answers[model.name], cost = measured
            rows = rows[: len(scores[model.name])]
        scores = {name: found.first(len(rows)) for name, found in scores.items()}
        available = len(self._rows.dataset)
        if self._dropped:
            left_out.append(f"{self._dropped} rows whose answers do not fit the model's context")
        if len(rows) < available:
            left_out.append(f"{available - len(rows)} of {available} rows")
        if cuts := [found.cut_after for found in answers.values() if found.cut_after is not None]:
            left_out.append(f"the ends of answers that have more than {min(cuts)} tokens")
        return self._result(models, scores, answers, examples, chosen, left_out)

    def _measure(
        self,
        model: EvaluatedModel,
        rows: Sequence[ScoredRow],
        examples: Sequence[_Example],
        budget: Budget,
        waiting: int,
        cost: float | None,
    ) -> tuple[RowScores, _Answers, float]:
        """Return one model's scores and answers, and the seconds that computing the losses took.

        `waiting`: number of models that are not measured yet. `cost`: seconds that the losses of
        the first model took; None if this model is the first. A model that is slower than the first
        model may score fewer rows. The function keeps no reference to the model, so the next model
        can use the memory."""
        with model.use() as used:
            began = budget.spent
            share = _SCORING / waiting
            enough = (
                budget.part(share)
                if cost is None
                else budget.at_most(max(LATER * cost, share * budget.left))
            )
            scores = self._score(used, rows, enough)
            cost = budget.spent - began if cost is None else cost
            seconds = max(0.0, (budget.left - cost * (waiting - 1)) / waiting)
            return scores, self._answer(used, examples, seconds), cost

    def _sample(self) -> tuple[list[int], list[ScoredRow]]:
        most = MAX_TRAINING_ROWS if self._rows.on == "training_file" else MAX_ROWS
        available = len(self._rows.dataset)
        draw = random.Random(f"evaluation {self._seed}")
        chosen = draw.sample(range(available), min(most, available))
        table = self._rows.dataset[chosen]
        pairs_of_lists = zip(table["input_ids"], table["labels"], strict=True)
        return chosen, [ScoredRow(ids, labels) for ids, labels in pairs_of_lists]

    def _score(
        self, model: Untyped, rows: Sequence[ScoredRow], enough: Callable[[], bool]
    ) -> RowScores:
        return score_rows(
            model,
            rows,
            pad_token_id=self._tokenizer.pad_token_id,
            max_tokens=self._max_tokens,
            autocast=self._autocast,
            enough=lambda done: enough(),
        )

    def _answer(self, model: Untyped, examples: Sequence[_Example], seconds: float) -> _Answers:
        longest = max(len(example.expected) for example in examples)
        found = greedy_answers(
            model,
            [example.prompt for example in examples],
            pad_token_id=self._tokenizer.pad_token_id,
            end_tokens=self._end_tokens,
            max_tokens=min(MAX_ANSWER_TOKENS, 2 * longest + 16),
            max_seconds=seconds,
            autocast=self._autocast,
        )
        return _Answers(
            texts=[self._decode(answer.token_ids, special=False) for answer in found],
            cut_after=max(len(answer.token_ids) for answer in found)
            if not all(answer.ended for answer in found)
            else None,
        )

    def _decode(self, ids: Sequence[int], *, special: bool) -> str:
        return storable(self._tokenizer.decode(ids, skip_special_tokens=not special))

    def _result(
        self,
        models: Sequence[EvaluatedModel],
        scores: dict[ModelName, RowScores],
        answers: dict[ModelName, _Answers],
        examples: Sequence[_Example],
        chosen: Sequence[int],
        left_out: Sequence[str],
    ) -> Evaluation:
        source, first = self._rows, next(iter(scores.values()), None)
        compared = pairs([*scores])
        evaluation = Evaluation(
            verdict="",
            metric="loss",
            on=source.on,
            file=source.file,
            rows=0 if first is None else len(first),
            rows_available=len(source.dataset),
            answer_tokens=0 if first is None else int(first.tokens.sum()),
            models=[
                ModelScores(
                    model=model.name,
                    step=model.step,
                    loss=finite(scores[model.name].loss),
                    perplexity=finite(scores[model.name].perplexity),
                    token_accuracy=scores[model.name].accuracy,
                )
                for model in models
                if model.name in scores
            ],
            comparisons=[
                comparison(
                    pair,
                    compare_losses(
                        scores[pair[0]],
                        scores[pair[1]],
                        seed=self._seed,
                        of=len(compared) * self._metrics,
                    ),
                    source.on,
                    "nats",
                )
                for pair in compared
            ],
            answers=[
                EvaluatedAnswer(
                    row=source.numbers[chosen[place]].as_py(),
                    prompt=self._decode(example.prompt, special=True),
                    expected=self._decode(example.expected, special=False),
                    answers={name: found.texts[place] for name, found in answers.items()},
                )
                for place, example in enumerate(examples)
            ],
            left_out=list(left_out),
        )
        return conclude(
            evaluation, {name: s.loss for name, s in scores.items()}, [m.name for m in models]
        )


@dataclass(frozen=True, kw_only=True)
class _Answers:
    texts: list[str]
    cut_after: int | None
    """Number of tokens after which answers were cut off; None if no answer was cut off."""


@dataclass(frozen=True, slots=True)
class _Example:
    prompt: list[int]
    expected: list[int]

    @classmethod
    def of(cls, row: ScoredRow) -> _Example:
        """Split a row at the start of its last answer. Split a row without a prompt, such as plain
        text, in the middle."""
        ids, labels = list(row.input_ids), row.labels
        end = len(labels)
        while end > 1 and labels[end - 1] == IGNORED:
            end -= 1
        start = end
        while start > 1 and labels[start - 1] != IGNORED:
            start -= 1
        if start <= 1:
            start = max(1, end // 2)
        return cls(ids[:start], ids[start:end])

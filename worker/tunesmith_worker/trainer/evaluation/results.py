"""Parts of the stored evaluation: scores, comparisons and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tunesmith_schema import Evaluation, ModelComparison
from tunesmith_schema.evaluation import MAX_TEXT, EvaluatedOn, ModelName
from tunesmith_worker.engine.evaluation.compare import Difference, verdict
from tunesmith_worker.rundir.events import finite

FIT = "fit, not generalisation"

Pair = tuple[ModelName, ModelName]
"""Names of the two models of a comparison."""


def pairs(measured: Sequence[ModelName]) -> list[Pair]:
    """Return the pairs of measured models to compare, the most important pair first."""
    possible: list[Pair] = [
        ("tuned", "base"),
        ("tuned", "best"),
        ("tuned", "last"),
        ("model", "against"),
    ]
    return [pair for pair in possible if set(pair) <= set(measured)]


def comparison(pair: Pair, difference: Difference, on: EvaluatedOn, unit: str) -> ModelComparison:
    """Return one comparison. `unit`: `nats` if the models' losses are compared, `reward` if their
    rewards are compared."""
    bounded = math.isfinite(difference.value)
    rows = "rows" if unit == "nats" else "prompts"
    words = verdict(difference, unit, f"training {rows}" if on == "training_file" else rows)
    return ModelComparison(
        model=pair[0],
        against=pair[1],
        metric="loss" if unit == "nats" else "reward",
        difference=finite(difference.value),
        low=finite(difference.low) if bounded else None,
        high=finite(difference.high) if bounded else None,
        level=difference.level,
        outcome=difference.outcome,
        verdict=f"{words} ({FIT})" if on == "training_file" else words,
    )


_REFERENCES: tuple[ModelName, ...] = ("base", "against")
"""Models with which the verdict compares the tuned model."""
_WORDS = {"tuned": "tuned", "base": "base", "model": "first", "against": "second"}


def conclude(
    evaluation: Evaluation, values: Mapping[ModelName, float], models: Sequence[ModelName]
) -> Evaluation:
    """Add the verdict of the first comparison to the evaluation, and return the evaluation.

    `values`: mean loss or mean reward of each measured model. `models`: models that should be
    measured."""
    base, tuned = values.get("base"), values.get("tuned", values.get("model"))
    update: dict[str, object] = {
        "base": finite(values.get("against", base)),
        "tuned": finite(tuned),
    }
    first = next((c for c in evaluation.comparisons if c.against in _REFERENCES), None)
    wanted = next((pair for pair in pairs(models) if pair[1] in _REFERENCES), None)
    if first is not None:
        update |= {"verdict": first.verdict, "outcome": first.outcome}
    elif wanted is None:
        update["verdict"] = f"not compared: {evaluation.metric} {_number(tuned)}"
    elif missing := [name for name in wanted if name not in values]:
        update["verdict"] = f"not compared: the {_WORDS[missing[0]]} model was left out"
    else:
        update["verdict"] = f"not compared: no row has a {evaluation.metric} for both models"
    return evaluation.model_copy(update=update)


def combined(first: Evaluation, *others: Evaluation) -> Evaluation:
    """Combine evaluations of the same models by different metrics, such as reward and loss.

    The result has the verdict and the answers of `first`."""
    for other in others:
        scores = {scores.model: scores for scores in other.models}
        models = []
        for own in first.models:
            found = scores.get(own.model)
            known = {} if found is None else found.model_dump(exclude_defaults=True)
            models.append(own.model_copy(update=known))
        names = {own.model for own in models}
        models += [own for own in other.models if own.model not in names]
        first = first.model_copy(
            update={
                "models": models,
                "answer_tokens": first.answer_tokens or other.answer_tokens,
                "comparisons": [*first.comparisons, *other.comparisons],
                "left_out": [*dict.fromkeys([*first.left_out, *other.left_out])],
            }
        )
    return first


def _number(value: float | None) -> str:
    return "not finite" if value is None or not math.isfinite(value) else f"{value:.4g}"


def storable(text: str) -> str:
    """Return at most MAX_TEXT characters of a decoded text, without characters that JSON or a
    database refuses."""
    valid = text[:MAX_TEXT].encode("utf-8", "replace").decode()
    return valid.replace("\x00", "\N{REPLACEMENT CHARACTER}")

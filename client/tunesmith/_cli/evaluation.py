"""Results of an evaluation: scores of each model, comparisons, and answers side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tunesmith_schema import EvaluatedAnswer, Evaluation, ModelScores


def show_evaluation(evaluation: Evaluation, names: Mapping[str, str] | None = None) -> None:
    """Print an evaluation. `names` maps the names of models in the evaluation
    to the names to print."""
    # Square brackets in texts are not markup.
    Console(markup=False, highlight=False, emoji=False).print(render(evaluation, names=names))


def render(
    evaluation: Evaluation, *, names: Mapping[str, str] | None = None, answers: bool = True
) -> RenderableType:
    """Make the text of an evaluation: verdict, scores of each model, comparisons, and the answers
    if `answers` is True."""
    parts: list[RenderableType] = [Text(evaluation.verdict, style="bold"), ""]
    for short, name in (names or {}).items():
        parts.append(f"{short}: {name}")
    parts.append(_scores(evaluation))
    for compared in evaluation.comparisons[1:]:
        parts.append(
            f"{compared.metric} of {compared.model} against {compared.against}: {compared.verdict}"
        )
    if evaluation.left_out:
        parts.append(f"left out: {'; '.join(evaluation.left_out)}")
    for answer in evaluation.answers if answers else ():
        parts += ["", _answer(answer)]
    return Group(*parts)


def _scores(evaluation: Evaluation) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    losses = evaluation.answer_tokens > 0 or evaluation.metric == "loss"
    columns = [name for name, _ in _columns(ModelScores(model="base"), evaluation.metric, losses)]
    for name in ("model", "step", *columns):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for scores in evaluation.models:
        values = (value for _, value in _columns(scores, evaluation.metric, losses))
        step = "" if scores.step is None else str(scores.step)
        table.add_row(scores.model, step, *(_number(value) for value in values))
    return table


def _columns(scores: ModelScores, metric: str, losses: bool) -> Iterator[tuple[str, float | None]]:
    if metric == "reward":
        yield "reward", scores.reward
    if losses:
        yield "loss", scores.loss
        yield "perplexity", scores.perplexity
        yield "token accuracy", scores.token_accuracy


def _answer(answer: EvaluatedAnswer) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(f"row {answer.row}", answer.prompt)
    if answer.expected is not None:
        table.add_row("expected", answer.expected)
    for name, text in answer.answers.items():
        reward = answer.rewards.get(name)
        table.add_row(name, text if reward is None else f"{text}  (reward {reward:.3g})")
    return table


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"

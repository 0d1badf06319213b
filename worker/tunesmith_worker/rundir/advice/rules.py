"""The one change that would help a run most: rules as data, each with what it predicts.

Pure functions of a report. A rule fires where its figure is above its threshold; of those that
fire, the one that saves most wins. Gains are upper bounds, and say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tunesmith_schema import STARTUP, TRAINING, Advice, PhaseName, RunReport, TrainingSettings

from . import rollout_rules as rollouts
from .bound import phase_seconds
from .memory_choice import gib, keep_all_estimate

LEAST_GAIN = 0.03
"""Share of the wall time below which a change is not worth a word."""
GOAL = 0.05
"""Evaluations and checkpoints are thinned out to this share of the time."""

Finding = tuple[str, float]
"""What to change, and the seconds that it saves at most."""


@dataclass(frozen=True)
class Rule:
    name: str
    figure: Callable[[RunReport, TrainingSettings], float | None]
    above: float
    advise: Callable[[RunReport, TrainingSettings], Finding | None]
    """None where the recipe leaves nothing to change."""


def choose_advice(report: RunReport) -> Advice:
    settings = report.settings
    if settings is None or report.steps == 0 or report.wall_seconds <= 0:
        return Advice(rule="none", text="no step has been done: nothing can be said yet")
    found = [
        (finding[1] / report.wall_seconds, rule.name, finding[0])
        for rule in RULES
        if (figure := rule.figure(report, settings)) is not None
        and figure > rule.above
        and (finding := rule.advise(report, settings)) is not None
    ]
    gain, name, text = max(found, default=(0.0, "none", ""))
    if gain < LEAST_GAIN:
        return Advice(rule="none", text=_nothing(report))
    saved = f"saves at most {gain:.0%} of the {report.wall_seconds:.1f} s"
    return Advice(rule=name, text=f"{text}; {saved}", gain_share=round(gain, 4))


def _nothing(report: RunReport) -> str:
    start = phase_seconds(report, *STARTUP)
    words = f"nothing to gain: no change that is known would save {LEAST_GAIN:.0%} of the time"
    if start > report.wall_seconds / 2:
        words += (
            f"; {start:.1f} of {report.wall_seconds:.1f} s are the start, which weighs less in a "
            "longer run"
        )
    return words


def _of_wall(*phases: PhaseName) -> Callable[[RunReport, TrainingSettings], float]:
    return lambda report, settings: phase_seconds(report, *phases) / report.wall_seconds


def _data_wait(report: RunReport, settings: TrainingSettings) -> Finding:
    waited, training = _waited_and_training(report)
    return (
        "give the worker's host faster or more cores: batches were waited for during "
        f"{waited:.1f} of {training:.1f} s of training",
        waited,
    )


def _waited_and_training(report: RunReport) -> tuple[float, float]:
    return phase_seconds(report, PhaseName.DATA_WAIT), phase_seconds(report, *TRAINING)


def _data_share(report: RunReport, settings: TrainingSettings) -> float | None:
    waited, training = _waited_and_training(report)
    return waited / training if training else None


def _padding(report: RunReport, settings: TrainingSettings) -> Finding | None:
    share = _padding_share(report, settings)
    if share is None or settings.layout != "padded" or _measured(report):
        return None
    rows = settings.per_device_train_batch_size
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    return (
        'recipe.patches="auto", which lays rows end to end where the model allows it, or fewer '
        f"rows at once than {rows}: {share:.0%} of the places in the batches held no token",
        share * passes,
    )


def _measured(report: RunReport) -> list[str]:
    """The layouts that were tried in turn at the start: what won is not put in question."""
    for choice in report.choices:
        if choice.name == "packing" and isinstance(choice.figures.get("tokens_per_second"), dict):
            return [*cast(dict[str, float], choice.figures["tokens_per_second"])]
    return []


def _padding_share(report: RunReport, settings: TrainingSettings) -> float | None:
    return report.throughput.padding_share if report.throughput else None


def _evaluation(report: RunReport, settings: TrainingSettings) -> Finding | None:
    seconds = phase_seconds(report, PhaseName.EVALUATION)
    if settings.eval_steps is None:
        return None
    now = f"evaluation took {seconds:.1f} of {report.wall_seconds:.1f} s"
    wider = _wider(settings.eval_steps, seconds, report)
    if wider is None:
        return f"a validation file with a tenth of the rows: {now}", seconds * 0.9
    return f"recipe.eval_steps={wider[0]}: {now}", wider[1]


def _checkpointing(report: RunReport, settings: TrainingSettings) -> Finding | None:
    seconds = phase_seconds(report, PhaseName.CHECKPOINTING)
    wider = settings.save_steps and _wider(settings.save_steps, seconds, report)
    if not wider:
        return None
    words = f"checkpoints took {seconds:.1f} of {report.wall_seconds:.1f} s"
    return f"recipe.save_steps={wider[0]}: {words}", wider[1]


def _wider(every: int, seconds: float, report: RunReport) -> tuple[int, float] | None:
    """Steps between two so that they take GOAL of the time, and what that saves; None when it
    happens but once already."""
    rest = report.wall_seconds - seconds
    factor = math.ceil(seconds * (1 - GOAL) / (GOAL * rest)) if rest > 0 else report.steps
    wider = min(every * factor, report.total_steps or every * factor)
    return (wider, seconds * (1 - every / wider)) if wider > every else None


def _logging(report: RunReport, settings: TrainingSettings) -> Finding:
    seconds, steps = phase_seconds(report, PhaseName.LOGGING), settings.logging_steps * 10
    return f"recipe.logging_steps={steps}: logging took {seconds:.1f} s", seconds * 0.9


def _small_batches(report: RunReport, settings: TrainingSettings) -> Finding | None:
    gain = report.saturation.doubling_gain
    if gain is None or not _can_merge(report, settings):
        return None
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    return f"{_twice(settings)}: {report.saturation.text}", passes * (1 - 1 / (1 + gain))


def _host(report: RunReport, settings: TrainingSettings) -> Finding | None:
    waits = report.device_waits_share
    if waits is None or report.saturation.doubling_gain or not _can_merge(report, settings):
        return None
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    words = f"the GPU had nothing left to do at the end of {waits:.0%} of the steps"
    return f"{_twice(settings)}: {words}", waits * passes / 2


def _can_merge(report: RunReport, settings: TrainingSettings) -> bool:
    """Twice the rows at once leaves the optimiser's steps as they are, should fit, and is not
    what the packed layout has tried."""
    memory = report.peak_memory
    full = (memory.reserved or 0) / (memory.device_total or 1)
    tried = settings.layout == "packed" or "packed" in _measured(report)
    return settings.gradient_accumulation_steps % 2 == 0 and full < 0.5 and not tried


def _twice(settings: TrainingSettings) -> str:
    rows, passes = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    return (
        f"recipe.per_device_train_batch_size={rows * 2} with "
        f"gradient_accumulation_steps={passes // 2}, the same rows a step"
    )


def _recompute(report: RunReport, settings: TrainingSettings) -> Finding | None:
    planned = keep_all_estimate(report)
    if planned is None or not settings.gradient_checkpointing:
        return None
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    return (
        "recipe.gradient_checkpointing='auto': to keep all activations is predicted to take "
        f"{gib(planned.peak_bytes)} of {gib(planned.budget_bytes)} that may be used",
        passes * planned.saved,
    )


def _saved_by_keeping(report: RunReport, settings: TrainingSettings) -> float | None:
    planned = keep_all_estimate(report)
    return planned.saved if planned is not None and planned.fits else None


RULES: tuple[Rule, ...] = (
    Rule("data_wait", _data_share, 0.10, _data_wait),
    Rule("padding", _padding_share, 0.20, _padding),
    Rule("evaluation", _of_wall(PhaseName.EVALUATION), 0.20, _evaluation),
    Rule("checkpointing", _of_wall(PhaseName.CHECKPOINTING), 0.10, _checkpointing),
    Rule("logging", _of_wall(PhaseName.LOGGING), 0.05, _logging),
    Rule("small_batches", lambda report, _: report.saturation.doubling_gain, 0.05, _small_batches),
    Rule("host", lambda report, _: report.device_waits_share, 0.50, _host),
    Rule("recompute", _saved_by_keeping, 0.0, _recompute),
    Rule("generation", rollouts.generation_share, 0.40, rollouts.generation),
    Rule("ungraded", rollouts.ungraded_share, 0.10, rollouts.ungraded),
    Rule("zero_std", rollouts.zero_std_share, rollouts.MOSTLY, rollouts.zero_std),
    Rule("truncated", rollouts.truncated_share, rollouts.MOSTLY, rollouts.truncated),
    Rule("grading", rollouts.grading_over_generation, 0.50, rollouts.grading),
    Rule("log_probs", _of_wall(PhaseName.LOG_PROBS), 0.10, rollouts.log_probs),
)
"""Name, figure, threshold, and what to do. Shares are of the wall time but for data_wait (of
training), padding (of the slots), host (of the steps) and recompute (of a step, as
the planner predicts). Reinforcement: zero_std is of the groups, ungraded and truncated are of the
completions, grading of the time in generation."""

"""Choose the advice of a run report: the change that saves the most time, from a table of rules.

A rule applies if its measured value is above its threshold. All savings are upper bounds of the
time saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tunesmith_schema import STARTUP, TRAINING, Advice, PhaseName, RunReport, TrainingSettings

from . import rollout_rules as rollouts
from .bound import phase_seconds
from .memory_choice import gib, keep_all_estimate

LEAST_GAIN = 0.03
"""Smallest saving worth reporting, as a share of the wall time."""
GOAL = 0.05
"""Share of the wall time that evaluations or checkpoints should take after the advised change."""

Suggestion = tuple[str, float]
"""Suggested change, and the maximum number of seconds that it can save."""


@dataclass(frozen=True)
class Rule:
    name: str
    figure: Callable[[RunReport, TrainingSettings], float | None]
    above: float
    advise: Callable[[RunReport, TrainingSettings], Suggestion | None]
    """Returns a suggestion, or None if no change of the recipe helps."""


def choose_advice(report: RunReport) -> Advice:
    settings = report.settings
    if settings is None or report.steps == 0 or report.wall_seconds <= 0:
        return Advice(rule="none", text="no advice yet: no step is done")
    options = [
        (suggestion[1] / report.wall_seconds, rule.name, suggestion[0])
        for rule in RULES
        if (figure := rule.figure(report, settings)) is not None
        and figure > rule.above
        and (suggestion := rule.advise(report, settings)) is not None
    ]
    gain, name, text = max(options, default=(0.0, "none", ""))
    if gain < LEAST_GAIN:
        return Advice(rule="none", text=_no_advice(report))
    saved = f"saves at most {gain:.0%} of the {report.wall_seconds:.1f} s"
    return Advice(rule=name, text=f"{text}; {saved}", gain_share=round(gain, 4))


def _no_advice(report: RunReport) -> str:
    start = phase_seconds(report, *STARTUP)
    text = f"nothing to gain: no known change would save {LEAST_GAIN:.0%} of the time"
    if start > report.wall_seconds / 2:
        text += (
            f"; the start took {start:.1f} of {report.wall_seconds:.1f} s; in a "
            "longer run, the start takes a smaller share"
        )
    return text


def _wall_share(*phases: PhaseName) -> Callable[[RunReport, TrainingSettings], float]:
    return lambda report, settings: phase_seconds(report, *phases) / report.wall_seconds


def _data_wait(report: RunReport, settings: TrainingSettings) -> Suggestion:
    waited, training = _waited_and_training(report)
    return (
        "give the worker's host faster or more cores: training waited for batches during "
        f"{waited:.1f} of {training:.1f} s",
        waited,
    )


def _waited_and_training(report: RunReport) -> tuple[float, float]:
    return phase_seconds(report, PhaseName.DATA_WAIT), phase_seconds(report, *TRAINING)


def _data_share(report: RunReport, settings: TrainingSettings) -> float | None:
    waited, training = _waited_and_training(report)
    return waited / training if training else None


def _padding(report: RunReport, settings: TrainingSettings) -> Suggestion | None:
    share = _padding_share(report, settings)
    if share is None or settings.layout != "padded" or _layout_is_fastest(report):
        return None
    rows = settings.per_device_train_batch_size
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    return (
        'recipe.patches="auto", which removes padding if the model supports it, or a '
        f"per_device_train_batch_size below {rows}: {share:.0%} of the token positions were "
        "padding",
        share * passes,
    )


def _layout_is_fastest(report: RunReport) -> bool:
    """Return True if the run chose its layout from several layouts; advice never changes this
    choice.

    In the report of such a run, the choice `packing` has the figure `alternatives` or, in reports
    of earlier versions, `tokens_per_second`."""
    return any(
        choice.name == "packing"
        and (choice.figures.get("alternatives") or choice.figures.get("tokens_per_second"))
        for choice in report.choices
    )


def _padding_share(report: RunReport, settings: TrainingSettings) -> float | None:
    return report.throughput.padding_share if report.throughput else None


def _evaluation(report: RunReport, settings: TrainingSettings) -> Suggestion | None:
    seconds = phase_seconds(report, PhaseName.EVALUATION)
    if settings.eval_steps is None:
        return None
    cost = f"evaluation took {seconds:.1f} of {report.wall_seconds:.1f} s"
    wider = _wider(settings.eval_steps, seconds, report)
    if wider is None:
        return f"a validation file with a tenth of the rows: {cost}", seconds * 0.9
    return f"recipe.eval_steps={wider[0]}: {cost}", wider[1]


def _checkpointing(report: RunReport, settings: TrainingSettings) -> Suggestion | None:
    seconds = phase_seconds(report, PhaseName.CHECKPOINTING)
    wider = settings.save_steps and _wider(settings.save_steps, seconds, report)
    if not wider:
        return None
    cost = f"checkpoints took {seconds:.1f} of {report.wall_seconds:.1f} s"
    return f"recipe.save_steps={wider[0]}: {cost}", wider[1]


def _wider(every: int, seconds: float, report: RunReport) -> tuple[int, float] | None:
    """Return a longer interval for evaluations or checkpoints, and the seconds that it saves.

    `every`: current interval in steps. `seconds`: time that evaluations or checkpoints took. At the
    new interval, evaluations or checkpoints take the share GOAL of the wall time. Return None if no
    longer interval helps."""
    rest = report.wall_seconds - seconds
    factor = math.ceil(seconds * (1 - GOAL) / (GOAL * rest)) if rest > 0 else report.steps
    wider = min(every * factor, report.total_steps or every * factor)
    return (wider, seconds * (1 - every / wider)) if wider > every else None


def _logging(report: RunReport, settings: TrainingSettings) -> Suggestion:
    seconds, steps = phase_seconds(report, PhaseName.LOGGING), settings.logging_steps * 10
    return f"recipe.logging_steps={steps}: logging took {seconds:.1f} s", seconds * 0.9


def _small_batches(report: RunReport, settings: TrainingSettings) -> Suggestion | None:
    gain = report.saturation.doubling_gain
    if gain is None or not _can_merge(report, settings):
        return None
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    return f"{_twice(settings)}: {report.saturation.text}", passes * (1 - 1 / (1 + gain))


def _host(report: RunReport, settings: TrainingSettings) -> Suggestion | None:
    waits = report.device_waits_share
    if waits is None or report.saturation.doubling_gain or not _can_merge(report, settings):
        return None
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    cause = f"the GPU was idle at the end of {waits:.0%} of the steps"
    return f"{_twice(settings)}: {cause}", waits * passes / 2


def _can_merge(report: RunReport, settings: TrainingSettings) -> bool:
    """Return True if the run may be advised to double the rows per micro-batch.

    The advice needs an even number of accumulation steps and more than half of the memory free.
    Larger micro-batches would not make a packed run faster."""
    memory = report.peak_memory
    used = (memory.reserved or 0) / (memory.device_total or 1)
    even = settings.gradient_accumulation_steps % 2 == 0
    return even and used < 0.5 and settings.layout != "packed"


def _twice(settings: TrainingSettings) -> str:
    rows, passes = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    return (
        f"recipe.per_device_train_batch_size={rows * 2} with "
        f"gradient_accumulation_steps={passes // 2} (the same rows per step)"
    )


def _recompute(report: RunReport, settings: TrainingSettings) -> Suggestion | None:
    planned = keep_all_estimate(report)
    if planned is None or not settings.gradient_checkpointing:
        return None
    passes = phase_seconds(report, PhaseName.FORWARD, PhaseName.BACKWARD)
    return (
        "recipe.gradient_checkpointing='auto': keeping all activations is predicted to need "
        f"{gib(planned.peak_bytes)}; available: {gib(planned.budget_bytes)}",
        passes * planned.saved,
    )


def _saved_by_keeping(report: RunReport, settings: TrainingSettings) -> float | None:
    planned = keep_all_estimate(report)
    return planned.saved if planned is not None and planned.fits else None


RULES: tuple[Rule, ...] = (
    Rule("data_wait", _data_share, 0.10, _data_wait),
    Rule("padding", _padding_share, 0.20, _padding),
    Rule("evaluation", _wall_share(PhaseName.EVALUATION), 0.20, _evaluation),
    Rule("checkpointing", _wall_share(PhaseName.CHECKPOINTING), 0.10, _checkpointing),
    Rule("logging", _wall_share(PhaseName.LOGGING), 0.05, _logging),
    Rule("small_batches", lambda report, _: report.saturation.doubling_gain, 0.05, _small_batches),
    Rule("host", lambda report, _: report.device_waits_share, 0.50, _host),
    Rule("recompute", _saved_by_keeping, 0.0, _recompute),
    Rule("generation", rollouts.generation_share, 0.40, rollouts.generation),
    Rule("ungraded", rollouts.ungraded_share, 0.10, rollouts.ungraded),
    Rule("zero_std", rollouts.zero_std_share, rollouts.MOSTLY, rollouts.zero_std),
    Rule("truncated", rollouts.truncated_share, rollouts.MOSTLY, rollouts.truncated),
    Rule("grading", rollouts.grading_over_generation, 0.50, rollouts.grading),
    Rule("log_probs", _wall_share(PhaseName.LOG_PROBS), 0.10, rollouts.log_probs),
)
"""All advice rules, with name, measured value, threshold and suggestion.

The values are shares of the wall time (rules evaluation, checkpointing, logging, generation and
log_probs), the training time (data_wait), the token positions (padding), the steps (host), the
predicted step time (recompute), the groups (zero_std) or the completions (ungraded, truncated). The
value of small_batches is the gain in tokens per second from twice the rows; the value of grading is
the waiting time for graders divided by the generation time."""

"""Advice for reinforcement runs: measured values, and suggested changes with their maximum savings.

`rules.py` builds advice rules from these functions. All values are None for supervised runs.
"""

from __future__ import annotations

import math

from tunesmith_schema import ROLLOUT, PhaseName, RunReport, TrainingSettings

from .bound import phase_seconds

MOSTLY = 0.50
"""The rule `zero_std` applies above this share of the groups, the rule `truncated` above this share
of the completions."""
_PASSES = (PhaseName.FORWARD, PhaseName.BACKWARD)


def generating(report: RunReport) -> float:
    """Return the seconds of generation, including the transfer of the weights to the generating
    engine."""
    return phase_seconds(report, PhaseName.SYNC, PhaseName.GENERATE)


def generation_share(report: RunReport, settings: TrainingSettings) -> float | None:
    """Return generation's share of the wall time; None if several steps already use the same
    completions."""
    rollouts = report.rollouts
    if rollouts is None or rollouts.num_iterations > 1:
        return None
    return generating(report) / report.wall_seconds


def generation(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    seconds = generating(report)
    return (
        "recipe.grpo.num_iterations=2 (two steps on the same completions) or a lower "
        f"recipe.grpo.max_completion_length: generating took {seconds:.1f} of "
        f"{report.wall_seconds:.1f} s",
        seconds / 2,
    )


def ungraded_share(report: RunReport, settings: TrainingSettings) -> float | None:
    return report.rollouts.ungraded_share if report.rollouts else None


def ungraded(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    share = ungraded_share(report, settings) or 0.0
    return (
        f"a grader that scores every completion: {share:.0%} of the completions had no "
        "reward and were not used; see the job's warnings",
        share * phase_seconds(report, *ROLLOUT, *_PASSES),
    )


def zero_std_share(report: RunReport, settings: TrainingSettings) -> float | None:
    """Return the share of groups with equal rewards; None if most completions were truncated.

    Truncated completions often have equal rewards, so separate advice covers truncated
    completions."""
    rollouts = report.rollouts
    cut = rollouts is not None and (rollouts.truncated_share or 0.0) > MOSTLY
    return None if rollouts is None or cut else rollouts.zero_std_share


def zero_std(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    share = zero_std_share(report, settings) or 0.0
    return (
        "easier or harder prompts, a larger recipe.grpo.num_generations, or a grader with "
        f"partial scores: in {share:.0%} of the groups all completions had the same reward, "
        "and the model learns nothing from such groups",
        share * phase_seconds(report, *ROLLOUT, *_PASSES),
    )


def truncated_share(report: RunReport, settings: TrainingSettings) -> float | None:
    return report.rollouts.truncated_share if report.rollouts else None


def truncated(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    share = truncated_share(report, settings) or 0.0
    limit = report.rollouts.longest if report.rollouts else 0
    return (
        f"recipe.grpo.max_completion_length={2 * limit}, or prompts with shorter answers: "
        f"{share:.0%} of the completions were cut after {limit} tokens, probably before the answer",
        share * phase_seconds(report, *ROLLOUT, *_PASSES),
    )


def grading_over_generation(report: RunReport, settings: TrainingSettings) -> float | None:
    """Return the ratio of the time waiting for graders to the generation time.

    Graders already run during generation, and the trainer then waits for the remaining scores. A
    ratio of 1 therefore means that grading takes twice as long as generation.
    """
    waited, generated = phase_seconds(report, PhaseName.GRADE), generating(report)
    if not waited:
        return None
    return waited / generated if generated else math.inf


def grading(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    waited = phase_seconds(report, PhaseName.GRADE)
    return (
        "a cheaper method.reinforcement.grader, or more cores for the worker's host: after "
        f"{generating(report):.1f} s of generation, the trainer waited {waited:.1f} s for graders",
        waited,
    )


def log_probs(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    seconds = phase_seconds(report, PhaseName.LOG_PROBS)
    return (
        "recipe.grpo.beta=0, which needs no reference model: the reference model took "
        f"{seconds:.1f} s",
        seconds,
    )

"""What would help a reinforcement run: figures, and changes with what they save at most.

Pure functions of a report, put together as rules in advice.py. Silent for other runs.
"""

from __future__ import annotations

import math

from tunesmith_schema import ROLLOUT, PhaseName, RunReport, TrainingSettings

from .bound import phase_seconds

MOSTLY = 0.50
"""Above this share, of groups or completions, a word is due."""
_PASSES = (PhaseName.FORWARD, PhaseName.BACKWARD)


def generating(report: RunReport) -> float:
    """Seconds of generation, with what brings the weights there."""
    return phase_seconds(report, PhaseName.SYNC, PhaseName.GENERATE)


def generation_share(report: RunReport, settings: TrainingSettings) -> float | None:
    """Of the wall time; None where completions serve several steps already."""
    found = report.rollouts
    if found is None or found.num_iterations > 1:
        return None
    return generating(report) / report.wall_seconds


def generation(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    seconds = generating(report)
    return (
        "recipe.grpo.num_iterations=2, two steps on the same completions, or a lower "
        f"recipe.grpo.max_completion_length: generating took {seconds:.1f} of "
        f"{report.wall_seconds:.1f} s",
        seconds / 2,
    )


def ungraded_share(report: RunReport, settings: TrainingSettings) -> float | None:
    return report.rollouts.ungraded_share if report.rollouts else None


def ungraded(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    share = ungraded_share(report, settings) or 0.0
    return (
        f"a grader that scores every completion: {share:.0%} had no reward and took no part, and "
        "the job's warnings say why",
        share * phase_seconds(report, *ROLLOUT, *_PASSES),
    )


def zero_std_share(report: RunReport, settings: TrainingSettings) -> float | None:
    """None where most completions were cut before their answer: they are equal for that."""
    found = report.rollouts
    cut = found is not None and (found.truncated_share or 0.0) > MOSTLY
    return None if found is None or cut else found.zero_std_share


def zero_std(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    share = zero_std_share(report, settings) or 0.0
    return (
        "prompts of another difficulty, a larger recipe.grpo.num_generations, or a grader that "
        f"tells more than right from wrong: in {share:.0%} of the groups all completions had the "
        "same reward, and nothing is learned from those",
        share * phase_seconds(report, *ROLLOUT, *_PASSES),
    )


def truncated_share(report: RunReport, settings: TrainingSettings) -> float | None:
    return report.rollouts.truncated_share if report.rollouts else None


def truncated(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    share = truncated_share(report, settings) or 0.0
    limit = report.rollouts.longest if report.rollouts else 0
    return (
        f"recipe.grpo.max_completion_length={2 * limit}, or prompts that ask for less: {share:.0%} "
        f"of the completions were cut after {limit} tokens, most likely before their answer",
        share * phase_seconds(report, *ROLLOUT, *_PASSES),
    )


def grading_over_generation(report: RunReport, settings: TrainingSettings) -> float | None:
    """Waiting for graders over generating. Graders run beside generation: to wait as long again
    is to grade for twice as long."""
    waited, drawn = phase_seconds(report, PhaseName.GRADE), generating(report)
    if not waited:
        return None
    return waited / drawn if drawn else math.inf


def grading(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    waited = phase_seconds(report, PhaseName.GRADE)
    return (
        "a cheaper method.reinforcement.grader, or more cores for the worker's host: graders were "
        f"waited for during {waited:.1f} s after the completions were there, which took "
        f"{generating(report):.1f} s",
        waited,
    )


def log_probs(report: RunReport, settings: TrainingSettings) -> tuple[str, float]:
    seconds = phase_seconds(report, PhaseName.LOG_PROBS)
    return (
        f"recipe.grpo.beta=0, which needs no reference model: its passes took {seconds:.1f} s",
        seconds,
    )

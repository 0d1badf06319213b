"""Find the cause of a wrong gradient in a supervised step.

The correct gradient is the sum of the micro-batches' gradients, each divided by the number of
labels in the whole step. A least-squares fit finds the factor of each micro-batch in the run's
gradient. In a correct gradient, the factor of each micro-batch is 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from .compare import Gradients, fit, parallel_factor
from .expected import ExpectedStep, norm_of

MISSING = 0.02
"""Factor below which a micro-batch counts as missing in the gradient."""
EQUAL = 0.05
"""Relative tolerance within which the fitted factors of the micro-batches count as equal."""
FITS = 0.1
"""Maximum relative difference between the run's gradient and its least-squares fit: the
micro-batches' gradients times the fitted factors. If the difference is larger, no cause is derived
from the factors."""


def name_cause(
    run: Gradients, expected: ExpectedStep, parts: Sequence[ExpectedStep], labels: Sequence[int]
) -> str:
    """Name the cause of a wrong gradient.

    `run`: the run's gradient before clipping. `parts`: the expected gradient of each micro-batch.
    `labels`: number of labels of each micro-batch."""
    factor = parallel_factor(run, expected.gradients, FITS)
    total = sum(labels)
    if not norm_of(dict(run)):
        return "the gradient is zero"
    if factor and abs(factor - 1.0) > EQUAL / 10:
        return (
            f"wrong normaliser: the gradient is {factor:.4g} times the correct gradient, as if the "
            f"loss was divided by {total / factor:.4g} instead of the step's {total} labels"
        )
    if len(parts) < 2:
        return "wrong gradient"
    factors = fit([part.gradients for part in parts], run)
    if _rest(run, parts, factors) > FITS:
        return "wrong gradient"
    missing = [place for place, share in enumerate(factors, start=1) if abs(share) < MISSING]
    if missing:
        places = ", ".join(map(str, missing))
        return f"micro-batch {places} of {len(parts)} is missing in the gradient"
    shown = ", ".join(f"{share:.3g}" for share in factors[:8])
    own = [share * count for share, count in zip(factors, labels, strict=True)]
    if max(own) - min(own) <= EQUAL * abs(max(own)):
        return (
            "wrong normaliser: the loss of each micro-batch is divided by its own number of labels "
            f"instead of the step's {total} (factors of the micro-batches: {shown} instead of 1)"
        )
    if max(abs(share - 1.0) for share in factors) > EQUAL / 10:
        return f"wrong normaliser: micro-batches have the factors {shown} instead of 1"
    return "wrong gradient"


def _rest(run: Gradients, parts: Sequence[ExpectedStep], factors: Sequence[float]) -> float:
    """Return the norm of the difference between the run's gradient and the sum of `parts`, each
    times its factor. The norm is divided by the norm of the run's gradient."""
    rest = {name: gradient.float().clone() for name, gradient in run.items()}
    for part, factor in zip(parts, factors, strict=True):
        for name, gradient in part.gradients.items():
            if name in rest:
                rest[name] -= factor * gradient
            else:
                rest[name] = -factor * gradient
    size = norm_of(dict(run))
    return norm_of(rest) / size if size else 0.0

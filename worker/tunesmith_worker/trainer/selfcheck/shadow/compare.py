"""Comparison of the run's first step with plain torch, and the cause of a difference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.scientific import scientific
from tunesmith_worker.trainer.selfcheck.findings import REPORT_HINT, Finding

from .expected import ExpectedStep, norm_of

Untyped = Any  # Any: transformers is not typed

CHECK = "first_step"
Gradients = Mapping[str, torch.Tensor]
Cause = Callable[[Gradients], str]
"""Function that names the cause of a wrong gradient; the argument is the gradient before
clipping."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    loss: float
    """Tolerance of the loss, relative to max(1, loss)."""
    norm: float
    """Relative tolerance of the gradient norm."""
    gradient: float
    """Tolerance of a gradient: norm of the error, divided by the norm of the expected gradient."""
    single: bool = True
    """True: `gradient` applies to the gradient of each tensor.

    False: `gradient` applies to the gradients of all tensors as one vector.
    """


FP32 = Tolerance(loss=1e-5, norm=1e-4, gradient=1e-4)
FP32_GPU = Tolerance(loss=5e-3, norm=5e-3, gradient=5e-3)
"""Tolerance in fp32 on a GPU, whose kernels multiply in TF32 with 10 mantissa bits."""
COARSE = Tolerance(loss=2e-2, norm=5e-2, gradient=0.25, single=False)
"""Tolerance if both the run and plain torch compute in 16 bits, or multiply in int8."""
CLIPPED = 1e-2
"""Relative tolerance of the gradient norm after clipping. Clipping rounds 16-bit gradients once
more."""
SMALL = 1e-6
"""Two gradients of a tensor count as equal if the norm of their difference is at most SMALL times
the norm of all gradients."""


@dataclass(frozen=True, kw_only=True)
class RunStep:
    """Results of the run's own step."""

    loss: float | None
    """Loss of the step; None if the loss has parts that plain torch does not compute."""
    norm: float | None
    """Gradient norm before clipping, as the run reports it; None if only some tensors are
    compared."""
    gradients: Gradients
    """Gradients after clipping; gradients before clipping if only a sample is compared."""
    max_norm: float = 0.0
    """Norm to which gradients are clipped; 0 for no clipping."""

    def only(self, tensors: frozenset[str] | None) -> RunStep:
        """Return the step with only the unclipped gradients of `tensors`.

        If `tensors` is None, return the step unchanged.
        """
        if tensors is None:
            return self
        factor = 1.0 if self.norm is None else clip_factor(self.norm, self.max_norm)
        chosen = {n: g.float() / factor for n, g in self.gradients.items() if n in tensors}
        return RunStep(loss=self.loss, norm=None, gradients=chosen)


@dataclass(frozen=True, kw_only=True)
class Differences:
    loss: float
    norm: float
    gradient: float
    tensor: str
    """Name of the tensor with the largest difference."""
    whole: float
    """Norm of the difference between the run's gradients and the expected gradients, divided by the
    norm of the expected gradients."""

    def within(self, tolerance: Tolerance) -> bool:
        return (
            self.loss <= tolerance.loss
            and self.norm <= tolerance.norm
            and self.gradient <= tolerance.gradient
        )


def gradients_of(model: Untyped) -> dict[str, torch.Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def clip_factor(norm: float, max_norm: float) -> float:
    """Return the factor that clips a gradient of this norm; 1 for `max_norm` 0."""
    return min(1.0, max_norm / (norm + 1e-6)) if max_norm > 0 else 1.0


def check_clipping(norm: float, gradients: Gradients, max_norm: float) -> list[Finding]:
    """Check the gradients that the optimizer receives.

    `norm`: norm of the gradients before clipping.
    """
    size = norm_of(dict(gradients))
    wanted = clip_factor(norm, max_norm) * norm
    if _apart(size, wanted, wanted) <= CLIPPED:
        return []
    return [
        fault(
            f"the gradient is not clipped as the recipe requires: its norm is {norm:.4g}, "
            f"recipe.max_grad_norm is {max_norm:g}, and the optimizer receives a gradient of norm "
            f"{size:.4g} instead of {wanted:.4g} (tolerance {CLIPPED:.0e}).",
            "clipping",
        )
    ]


def differences(run: RunStep, expected: ExpectedStep, tolerance: Tolerance) -> Differences:
    """Compare the run's loss, gradient norm and clipped gradients with the expected step."""
    factor = 1.0 if run.norm is None else clip_factor(expected.norm, run.max_norm)
    gradient, tensor = _worst(run.gradients, expected, factor, tolerance)
    return Differences(
        loss=0.0
        if run.loss is None
        else _apart(run.loss, expected.loss, max(1.0, abs(expected.loss))),
        norm=0.0 if run.norm is None else _apart(run.norm, expected.norm, expected.norm),
        gradient=gradient,
        tensor=tensor,
        whole=_relative(
            _distance(run.gradients, expected.gradients, factor), factor * expected.norm
        ),
    )


def describe(rows: str, run: RunStep, found: Differences, tensors: frozenset[str] | None) -> str:
    """Describe a step without differences.

    `rows`: text that says which rows are compared. `tensors`: compared tensors; None for all.
    """
    some = "" if tensors is None else f" of a sample of {len(tensors)} tensors"
    parts = [("gradient" + some, found.whole)]
    if run.norm is not None:
        parts.insert(0, ("gradient norm", found.norm))
    if run.loss is not None:
        parts.insert(0, ("loss", found.loss))
    names, values = [name for name, _ in parts], [scientific(value, 0) for _, value in parts]
    verb = "equal" if len(parts) > 1 else "equals"
    return (
        f"{rows}: {_listed(names)} {verb} plain torch on the stock modules within {_listed(values)}"
    )


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:-1]) + (" and " if items[:-1] else "") + items[-1]


def check_step(
    run: RunStep, expected: ExpectedStep, tolerance: Tolerance, find_cause: Cause
) -> tuple[Differences, list[Finding]]:
    found = differences(run, expected, tolerance)
    if found.within(tolerance):
        return found, []
    cause = find_cause(_before_clipping(run))
    parts = [f"{cause}: compared with plain torch on the stock modules,"]
    values = []
    if run.loss is not None:
        values.append(
            f"the loss is {run.loss:.6g} instead of {expected.loss:.6g} "
            f"(tolerance {tolerance.loss:.0e})"
        )
    if run.norm is not None:
        values.append(
            f"the gradient norm {run.norm:.6g} instead of {expected.norm:.6g} "
            f"(tolerance {tolerance.norm:.0e})"
        )
    values.append(
        f"the gradient of {found.tensor} differs by {scientific(found.gradient)} "
        f"(tolerance {tolerance.gradient:.0e})"
    )
    parts.append(_listed(values) + ".")
    return found, [fault(" ".join(parts))]


def fault(message: str, check: str = CHECK, hint: str = REPORT_HINT) -> Finding:
    return Finding(check, message, hint, category=ErrorCategory.INFRASTRUCTURE)


def _before_clipping(run: RunStep) -> Gradients:
    size = norm_of(dict(run.gradients))
    factor = run.norm / size if run.norm is not None and size else 1.0
    return {name: grad.float() * factor for name, grad in run.gradients.items()}


def parallel_factor(actual: Gradients, expected: Gradients, limit: float) -> float | None:
    """Return the factor c if `actual` equals c times `expected` up to the relative error `limit`,
    else None."""
    (factor,) = fit([expected], actual)
    rest = _distance(actual, expected, factor)
    return factor if rest <= limit * abs(factor) * norm_of(dict(expected)) else None


def fit(parts: Sequence[Gradients], whole: Gradients) -> list[float]:
    """Return the factors c for which the sum of c_k parts_k is nearest to `whole`."""
    products = torch.tensor([[_dot(a, b) for b in parts] for a in parts], dtype=torch.float64)
    right = torch.tensor([_dot(part, whole) for part in parts], dtype=torch.float64)
    solution = torch.linalg.lstsq(products, right[:, None], driver="gelsd").solution
    factors: list[float] = solution[:, 0].tolist()
    return factors


def _dot(a: Gradients, b: Gradients) -> float:
    names = a.keys() & b.keys()
    return sum(
        float((a[name].float() * b[name].float()).sum(dtype=torch.float64)) for name in names
    )


def _distance(actual: Gradients, expected: Gradients, factor: float) -> float:
    """Return the norm of `actual - factor * expected`; a missing gradient counts as zero."""
    squares = 0.0
    for name in actual.keys() | expected.keys():
        a, b = actual.get(name), expected.get(name)
        rest = torch.zeros(()) if a is None else a.float()
        if b is not None:
            rest = rest.to(b.device) - factor * b
        squares += float(rest.square().sum(dtype=torch.float64))
    return math.sqrt(squares)


def _worst(
    actual: Gradients, expected: ExpectedStep, factor: float, tolerance: Tolerance
) -> tuple[float, str]:
    whole = factor * expected.norm
    if not tolerance.single:
        apart = _distance(actual, expected.gradients, factor)
        return _relative(apart, whole), "all trained weights"
    worst, tensor = 0.0, "all trained weights"
    for name in sorted(actual.keys() | expected.gradients.keys()):
        one = {name: actual[name]} if name in actual else {}
        other = {name: expected.gradients[name]} if name in expected.gradients else {}
        distance = _distance(one, other, factor)
        size = factor * norm_of(other)
        apart = 0.0 if distance <= SMALL * whole else _relative(distance, size)
        if not apart <= worst:
            worst, tensor = apart if apart == apart else math.inf, name
    return worst, tensor


def _apart(actual: float, expected: float, size: float) -> float:
    return _relative(abs(actual - expected), size)


def _relative(distance: float, size: float) -> float:
    if distance == 0.0:
        return 0.0
    apart = distance / size if size else math.inf
    return apart if apart == apart else math.inf

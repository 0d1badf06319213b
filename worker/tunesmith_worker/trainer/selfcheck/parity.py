"""Comparisons of two runs of the model: with and without adapter, rows in a batch and alone, with
our kernels and with stock modules.

docs/explanation/self-check.md lists the tolerances. Models with 16-bit weights are compared in
fp32, where rounding hides no fault. In 16 bits, the gradients of our kernels and of the stock model
are compared with the fp32 gradients of the stock model. Our kernels' gradient error may be at most
FACTOR times the stock model's gradient error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from tunesmith_schema import ErrorCategory
from tunesmith_worker.engine.scientific import scientific

from .findings import Finding, Outcome, make_outcome
from .model_runs import ModelRun


@dataclass(frozen=True, kw_only=True)
class Limits:
    log_prob: float
    """Tolerance of a label's log-probability: absolute below 1 nat, relative above 1 nat."""
    gradient: float
    """Tolerance of a tensor's gradient: RMS difference divided by the RMS of the stock gradient."""
    single: bool = True
    """True: the limits apply to each label and to each gradient tensor. False: the limits apply to
    the RMS over all labels and to the RMS over all gradients."""


EXACT = Limits(log_prob=1e-4, gradient=1e-4)
"""Limits for fp32 on a CPU, where results differ only by the order of summation.

The largest measured difference is 5e-6, over 21 models of 16 families.
"""
EXACT_GPU = Limits(log_prob=5e-3, gradient=5e-3)
"""Limits in fp32 on a GPU, whose kernels multiply in TF32 with 10 mantissa bits."""
COARSE = Limits(log_prob=0.25, gradient=0.25, single=False)
"""Limits for a comparison of two results in 16 bits. These limits apply if the check cannot compute
in fp32, because the base model is quantized or memory is too small."""
SMALL = 1e-6
"""Two gradients of a tensor count as equal if the norm of their difference is at most SMALL times
the norm of all gradients.

Gradients of key biases are always that small.
"""
FACTOR = 2.0
"""Maximum ratio of our kernels' gradient error to the stock model's gradient error, both in 16
bits. The ratio measured on one batch was 1.3 (docs/contributing/log)."""
FLOOR = 1e-2
"""Minimum of the stock model's 16-bit gradient error. A smaller measured error is replaced by this
value, because the measured error may be small by chance."""

_PATCHES_OFF = "Set recipe.patches='off' to train on the stock modules, and report the fault."
_ADAPTER_HINT = "Set recipe.patches='off'. If the fault remains, report it with the job's events."
_SHOWN = 3


def check_adapter_acts(
    perturbed: ModelRun, base: ModelRun, least: float, trained: list[str], *, experts: bool
) -> Outcome:
    """Check `adapter_acts`: a perturbed adapter changes the output, and its tensors have gradients.

    `least`: minimum change of a log-probability. `trained`: names of LoRA's tensors.
    `experts`: True for a mixture of experts, in which some experts may receive no token.
    """
    name = "adapter_acts"
    change = float((perturbed.log_probs - base.log_probs).abs().max())
    without = [
        tensor
        for tensor in trained
        if (gradient := perturbed.gradients.get(tensor)) is None or not bool(gradient.any())
    ]
    if experts:
        without = [tensor for tensor in without if "expert" not in tensor]
    findings = []
    if without:
        findings.append(
            _adapter_fault(
                name,
                f"{len(without)} of {len(trained)} adapter tensors get no gradient "
                f"(tolerance: 0): {', '.join(without[:_SHOWN])}.",
            )
        )
    if not change > least:
        findings.append(
            _adapter_fault(
                name,
                f"noise on the adapter changes the labels' log-probabilities by only "
                f"{scientific(change)} (at least {least:.0e} is expected): the model does not use "
                "the adapter.",
            )
        )
    detail = f"noise on the adapter changes log-probabilities by {change:.2g}"
    return make_outcome(name, findings, detail)


def check_fresh_adapter(fresh: ModelRun, base: ModelRun, limit: float) -> Outcome:
    """Check `fresh_adapter`: while LoRA's B is 0, labels have the log-probabilities of the base
    model."""
    name = "fresh_adapter"
    change = float((fresh.log_probs - base.log_probs).pow(2).mean().sqrt())
    findings = []
    if not change <= limit:
        findings.append(
            _adapter_fault(
                name,
                f"a fresh adapter changes the labels' log-probabilities by {change:.1e} "
                f"(tolerance {limit:.0e}): the adapter must not change the model before the "
                "first step.",
            )
        )
    return make_outcome(name, findings, f"equals the base model within {scientific(change, 0)}")


def is_fresh(model: torch.nn.Module) -> bool:
    return not any(bool(p.any()) for n, p in model.named_parameters() if ".lora_B." in n)


def _adapter_fault(check: str, message: str) -> Finding:
    return Finding(
        check,
        message,
        _ADAPTER_HINT,
        param="recipe.patches",
        category=ErrorCategory.INFRASTRUCTURE,
    )


def compare_rows(together: ModelRun, alone: ModelRun, limits: Limits, *, experts: bool) -> Outcome:
    """Check `rows_apart`: rows in a batch give the same results as each row alone.

    `experts`: True for a mixture of experts, whose router may change its choice for single tokens.
    """
    name = "rows_apart"
    if together.log_probs.shape != alone.log_probs.shape:
        message = (
            f"a batch has {len(together.log_probs)} labels, but its single rows have "
            f"{len(alone.log_probs)} labels (tolerance: 0)."
        )
        return make_outcome(name, [_fault(name, message, "packing")], "")
    apart = change(together.log_probs, alone.log_probs, limits)
    worst, tensor = _worst_gradient(together, alone, limits)
    if experts:
        apart = float(_apart(together.log_probs, alone.log_probs).median())
        worst = 0.0
    findings = []
    if not (apart <= limits.log_prob and worst <= limits.gradient):
        findings.append(
            _fault(
                name,
                f"when rows share a batch, a label's log-probability changes by "
                f"{scientific(apart)} (tolerance {limits.log_prob:.0e}) and the gradient of "
                f"{tensor} by {scientific(worst)} (tolerance {limits.gradient:.0e}): attention "
                "crosses rows, or positions do not restart in each row.",
                "packing",
            )
        )
    whole = _whole_distance(together, alone)
    detail = f"rows in a batch match single rows within {scientific(apart, 0)} (log-probabilities)"
    if not experts:
        detail += f" and {scientific(whole, 0)} (gradient)"
    return make_outcome(name, findings, detail)


def compare_with_stock(
    ours: ModelRun, stock: ModelRun, limits: Limits, *, computed_in: str
) -> Outcome:
    """Check `patched_equals_stock`: log-probabilities and gradients match in the same dtype."""
    name = "patched_equals_stock"
    forward = change(ours.log_probs, stock.log_probs, limits)
    worst, tensor = _worst_gradient(ours, stock, limits)
    loss = abs(ours.loss - stock.loss) / max(abs(stock.loss), 1e-12)
    findings = []
    if not (forward <= limits.log_prob and worst <= limits.gradient):
        findings.append(
            _fault(
                name,
                f"in {computed_in}, our kernels differ from the stock modules by "
                f"{scientific(forward)} in a label's log-probability (tolerance "
                f"{limits.log_prob:.0e}) and by {scientific(worst)} in the gradient of "
                f"{tensor} (tolerance {limits.gradient:.0e}).",
                "patches",
            )
        )
    whole = _whole_distance(ours, stock)
    detail = (
        f"kernels match the stock model within {scientific(loss, 0)} (loss) and "
        f"{scientific(whole, 0)} (gradient)"
    )
    return make_outcome(name, findings, detail)


def compare_16_bits(ours: ModelRun, stock: ModelRun, truth: ModelRun, in_fp32: Outcome) -> Outcome:
    """Check `patched_equals_stock` in 16 bits: compare our gradient error with the stock model's
    error.

    `truth`: run of the stock model in fp32. `in_fp32`: outcome of the comparison in fp32.
    """
    name = "patched_equals_stock"
    our_distance, stock_distance = (_whole_distance(run, truth) for run in (ours, stock))
    limit = FACTOR * max(stock_distance, FLOOR)
    findings = []
    if not our_distance <= limit:
        findings.append(
            _fault(
                name,
                f"in 16 bits, our kernels' gradient error against fp32 is {our_distance:.1e} "
                f"(tolerance {limit:.1e}; the stock model's error is {stock_distance:.1e}).",
                "patches",
            )
        )
    detail = (
        f"{in_fp32.detail}; gradient error in 16 bits {scientific(our_distance)}, stock model "
        f"{scientific(stock_distance)}"
    )
    return make_outcome(name, [*in_fp32.findings, *findings], detail)


def _fault(check: str, message: str, param: Literal["packing", "patches"]) -> Finding:
    hint = _PATCHES_OFF
    if param == "packing":
        hint = "Set recipe.packing=false, or recipe.patches='off', and report the fault."
    return Finding(
        check, message, hint, param=f"recipe.{param}", category=ErrorCategory.INFRASTRUCTURE
    )


def change(actual: torch.Tensor, expected: torch.Tensor, limits: Limits) -> float:
    """Return the largest difference between two results' log-probabilities; the RMS difference if
    `limits.single` is False."""
    apart = _apart(actual, expected)
    return float(apart.max() if limits.single else apart.pow(2).mean().sqrt())


def _apart(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if actual.shape != expected.shape:
        return torch.full_like(expected, math.inf)
    apart = (actual - expected).abs() / expected.abs().clamp(min=1.0)
    return apart.nan_to_num(nan=math.inf)


def _worst_gradient(ours: ModelRun, stock: ModelRun, limits: Limits) -> tuple[float, str]:
    """Return the largest relative gradient error of a tensor, and the tensor's name."""
    if not limits.single:
        return _whole_distance(ours, stock), "all trained weights"
    total = math.sqrt(sum(_squares(gradient) for gradient in stock.gradients.values()))
    worst, tensor = 0.0, "nothing"
    for name in sorted(stock.gradients.keys() | ours.gradients.keys()):
        distance, size = _distance(ours, stock, name)
        apart = 0.0 if distance <= SMALL * total else distance / size if size else math.inf
        if not apart <= worst:
            worst, tensor = apart if apart == apart else math.inf, name
    return worst, tensor


def _whole_distance(run: ModelRun, truth: ModelRun) -> float:
    names = truth.gradients.keys() | run.gradients.keys()
    pairs = [_distance(run, truth, name) for name in sorted(names)]
    distance = math.sqrt(sum(d * d for d, _ in pairs))
    size = math.sqrt(sum(s * s for _, s in pairs))
    return distance / size if size else distance


def _distance(run: ModelRun, truth: ModelRun, name: str) -> tuple[float, float]:
    """Return two norms for a tensor: the norm of the difference between both runs' gradients, and
    the norm of the gradient in `truth`.

    A missing gradient counts as zero."""
    a, b = run.gradients.get(name), truth.gradients.get(name)
    if a is None or b is None:
        left = a if b is None else b
        assert left is not None
        return math.sqrt(_squares(left)), 0.0 if b is None else math.sqrt(_squares(b))
    return math.sqrt(_squares(a.float() - b.float())), math.sqrt(_squares(b))


def _squares(x: torch.Tensor) -> float:
    return float(x.float().pow(2).sum(dtype=torch.float64))

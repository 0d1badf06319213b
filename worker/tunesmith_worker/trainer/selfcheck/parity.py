"""Whether rows that share a batch are as if alone, and whether our kernels compute what stock does.

docs/explanation/self-check.md has the comparisons and their tolerances. With 16-bit weights both
are proven in fp32, where rounding hides nothing; and in 16 bits our gradient may be no farther from
fp32's than some times what stock's own is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from tunesmith_schema import ErrorCategory

from .findings import Finding, Outcome, judged
from .model_runs import Pass


@dataclass(frozen=True, kw_only=True)
class Limits:
    log_prob: float
    """Of one label's log-probability, in units of max(1, its size)."""
    gradient: float
    """Of one tensor's gradient: RMS of the difference over RMS of stock's."""
    single: bool = True
    """Whether each label and each tensor is held to it; else their RMS and the whole gradient."""


EXACT = Limits(log_prob=1e-4, gradient=1e-4)
"""fp32 on a CPU: sums in another order. Measured over the families: 1e-5 and 1e-5 at most."""
EXACT_GPU = Limits(log_prob=5e-3, gradient=5e-3)
"""fp32 on a GPU, whose kernels multiply fp32 as TF32 (10 bits)."""
COARSE = Limits(log_prob=0.25, gradient=0.25, single=False)
"""16 bits without fp32 to hold it against: a quantised base model, or no memory for fp32."""
SMALL = 1e-6
"""A tensor's difference below that share of the whole gradient counts as none: biases of keys
cancel all but that."""
FACTOR = 2.0
"""16 bits: how many times stock's own distance from fp32's gradient. verdict.py's 1.5 is for the
mean of many steps; of one piece of data 1.3 was seen (docs/contributing/log)."""
FLOOR = 1e-2
"""The least distance that is allowed, as stock may lie close to fp32 by luck."""

_PATCHES_OFF = "Set recipe.patches='off' to train on the stock modules, and report this."


def rows_apart(together: Pass, alone: Pass, limits: Limits, *, experts: bool) -> Outcome:
    """`rows_apart`. `experts`: a mixture, whose router may tip over for single tokens."""
    name = "rows_apart"
    if together.log_probs.shape != alone.log_probs.shape:
        counts = f"{len(together.log_probs)} labels, its rows alone {len(alone.log_probs)}"
        return judged(name, [_fault(name, f"a batch has {counts} (tolerance: 0).", "packing")], "")
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
                f"when rows share a batch, a label's log-probability changes by {apart:.1e} "
                f"(tolerance {limits.log_prob:.0e}) and the gradient of {tensor} by {worst:.1e} "
                f"(tolerance {limits.gradient:.0e}): rows see one another, or their positions are "
                "not their own.",
                "packing",
            )
        )
    whole = _whole_distance(together, alone)
    detail = f"rows of a batch = alone to {apart:.0e} in log-probabilities"
    return judged(name, findings, detail if experts else f"{detail}, {whole:.0e} in gradient")


def patched_equals_stock(ours: Pass, stock: Pass, limits: Limits, *, computed_in: str) -> Outcome:
    """`patched_equals_stock`: log-probabilities and every gradient, both sides in one dtype."""
    name = "patched_equals_stock"
    forward = change(ours.log_probs, stock.log_probs, limits)
    worst, tensor = _worst_gradient(ours, stock, limits)
    loss = abs(ours.loss - stock.loss) / max(abs(stock.loss), 1e-12)
    findings = []
    if not (forward <= limits.log_prob and worst <= limits.gradient):
        findings.append(
            _fault(
                name,
                f"in {computed_in}, our kernels differ from the stock modules by {forward:.1e} in "
                f"a label's log-probability (tolerance {limits.log_prob:.0e}) and by {worst:.1e} "
                f"in the gradient of {tensor} (tolerance {limits.gradient:.0e}).",
                "patches",
            )
        )
    whole = _whole_distance(ours, stock)
    return judged(name, findings, f"= stock to {loss:.0e} in loss, {whole:.0e} in gradient")


def as_near_as_stock(ours: Pass, stock: Pass, truth: Pass, in_fp32: Outcome) -> Outcome:
    """`patched_equals_stock` in 16 bits, with its outcome in fp32: distances of the whole gradient
    from fp32's."""
    name = "patched_equals_stock"
    own, other = (_whole_distance(one, truth) for one in (ours, stock))
    limit = FACTOR * max(other, FLOOR)
    findings = []
    if not own <= limit:
        findings.append(
            _fault(
                name,
                f"in 16 bits, our kernels' gradient is {own:.1e} away from fp32's, stock's own "
                f"{other:.1e} (tolerance {limit:.1e}).",
                "patches",
            )
        )
    detail = f"{in_fp32.detail}; in 16 bits {own:.1e} from fp32's gradient, stock {other:.1e}"
    return judged(name, [*in_fp32.findings, *findings], detail)


def _fault(check: str, message: str, param: Literal["packing", "patches"]) -> Finding:
    hint = _PATCHES_OFF
    if param == "packing":
        hint = "Set recipe.packing=false, or recipe.patches='off', and report this."
    return Finding(
        check, message, hint, param=f"recipe.{param}", category=ErrorCategory.INFRASTRUCTURE
    )


def change(actual: torch.Tensor, expected: torch.Tensor, limits: Limits) -> float:
    """Of log-probabilities [N]: what `limits.log_prob` is for."""
    apart = _apart(actual, expected)
    return float(apart.max() if limits.single else apart.pow(2).mean().sqrt())


def _apart(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """[N]; infinite where a value is no number, or labels are missing."""
    if actual.shape != expected.shape:
        return torch.full_like(expected, math.inf)
    apart = (actual - expected).abs() / expected.abs().clamp(min=1.0)
    return apart.nan_to_num(nan=math.inf)


def _worst_gradient(ours: Pass, stock: Pass, limits: Limits) -> tuple[float, str]:
    """The largest relative distance of a tensor, and whose."""
    if not limits.single:
        return _whole_distance(ours, stock), "all that trains"
    total = math.sqrt(sum(_squares(one) for one in stock.gradients.values()))
    worst, tensor = 0.0, "nothing"
    for name in sorted(stock.gradients.keys() | ours.gradients.keys()):
        distance, size = _distance(ours, stock, name)
        apart = 0.0 if distance <= SMALL * total else distance / size if size else math.inf
        if not apart <= worst:
            worst, tensor = apart if apart == apart else math.inf, name
    return worst, tensor


def _whole_distance(one: Pass, truth: Pass) -> float:
    names = truth.gradients.keys() | one.gradients.keys()
    pairs = [_distance(one, truth, name) for name in sorted(names)]
    distance = math.sqrt(sum(d * d for d, _ in pairs))
    size = math.sqrt(sum(s * s for _, s in pairs))
    return distance / size if size else distance


def _distance(one: Pass, other: Pass, name: str) -> tuple[float, float]:
    """Of a tensor's gradients, and the size of the other's; a missing gradient is zero."""
    a, b = one.gradients.get(name), other.gradients.get(name)
    if a is None or b is None:
        left = a if b is None else b
        assert left is not None
        return math.sqrt(_squares(left)), 0.0 if b is None else math.sqrt(_squares(b))
    return math.sqrt(_squares(a.float() - b.float())), math.sqrt(_squares(b))


def _squares(x: torch.Tensor) -> float:
    return float(x.float().pow(2).sum(dtype=torch.float64))


_ADAPTER_HINT = "Set recipe.patches='off'; if it stays, report it with the job's events."
_SHOWN = 3


def acts(moved: Pass, base: Pass, least: float, trained: list[str], *, experts: bool) -> Outcome:
    """`adapter_acts`: with B moved, the output moves by `least` and each tensor has a gradient.
    `trained`: LoRA's tensors by name. `experts`: a mixture, which need not ask each of them."""
    name = "adapter_acts"
    change = float((moved.log_probs - base.log_probs).abs().max())
    without = [
        tensor
        for tensor in trained
        if (gradient := moved.gradients.get(tensor)) is None or not bool(gradient.any())
    ]
    if experts:
        without = [tensor for tensor in without if "expert" not in tensor]
    findings = []
    if without:
        findings.append(
            _adapter_fault(
                name,
                f"{len(without)} of {len(trained)} tensors of the adapter get no gradient "
                f"(tolerance: 0): {', '.join(without[:_SHOWN])}.",
            )
        )
    if not change > least:
        findings.append(
            _adapter_fault(
                name,
                f"moving the adapter changes the labels' log-probabilities by {change:.1e} (more "
                f"than {least:.0e} is expected): it is not part of what is computed.",
            )
        )
    return judged(name, findings, f"moving it changes log-probabilities by {change:.2g}")


def starts_from_base(fresh: Pass, base: Pass, limit: float) -> Outcome:
    """`fresh_adapter`: with B = 0 the model is the base model; RMS over labels."""
    name = "fresh_adapter"
    change = float((fresh.log_probs - base.log_probs).pow(2).mean().sqrt())
    findings = []
    if not change <= limit:
        findings.append(
            _adapter_fault(
                name,
                f"a fresh adapter changes the labels' log-probabilities by {change:.1e} "
                f"(tolerance {limit:.0e}): it must start out equal to the base model.",
            )
        )
    return judged(name, findings, f"{change:.0e} from the base model")


def is_fresh(model: torch.nn.Module) -> bool:
    return not any(bool(p.any()) for n, p in model.named_parameters() if ".lora_B." in n)


def _adapter_fault(check: str, message: str) -> Finding:
    return Finding(
        check, message, _ADAPTER_HINT, param="recipe.patches", category=ErrorCategory.INFRASTRUCTURE
    )

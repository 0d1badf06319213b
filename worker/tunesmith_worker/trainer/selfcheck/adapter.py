"""Whether the adapter is part of what is computed, and a fresh one changes nothing yet."""

from __future__ import annotations

import torch

from tunesmith_schema import ErrorCategory

from .findings import Finding
from .passes import Pass
from .subject import Outcome, judged

_HINT = "Set recipe.patches='off'; if it stays, report it with the job's events."
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
            _fault(
                name,
                f"{len(without)} of {len(trained)} tensors of the adapter get no gradient "
                f"(tolerance: 0): {', '.join(without[:_SHOWN])}.",
            )
        )
    if not change > least:
        findings.append(
            _fault(
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
            _fault(
                name,
                f"a fresh adapter changes the labels' log-probabilities by {change:.1e} "
                f"(tolerance {limit:.0e}): it must start out equal to the base model.",
            )
        )
    return judged(name, findings, f"{change:.0e} from the base model")


def is_fresh(model: torch.nn.Module) -> bool:
    return not any(bool(p.any()) for n, p in model.named_parameters() if ".lora_B." in n)


def _fault(check: str, message: str) -> Finding:
    return Finding(
        check, message, _HINT, param="recipe.patches", category=ErrorCategory.INFRASTRUCTURE
    )

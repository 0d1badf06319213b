"""AdamW in fp32 on flat tensors. All optimizers of this package use the formulas below.

    m = beta1 m + (1 - beta1) g             v = beta2 v + (1 - beta2) g^2
    x = (1 - lr wd) x - lr / (1 - beta1^t)  m / (sqrt(v) / sqrt(1 - beta2^t) + eps)

The formulas are the same as in torch.optim.AdamW. Source: Loshchilov and Hutter, "Decoupled Weight
Decay Regularization", https://arxiv.org/abs/1711.05101. Callers choose how they store x, m and v
between steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

__all__ = ["AdamW", "adamw_", "adamw_reference_"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamW:
    """Hyperparameters of one AdamW step."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    step: int
    """Step number t; the first step has number 1."""

    @property
    def decay(self) -> float:
        return 1.0 - self.lr * self.weight_decay

    @property
    def step_size(self) -> float:
        return self.lr / (1.0 - self.beta1**self.step)

    @property
    def v_correction(self) -> float:
        return math.sqrt(1.0 - self.beta2**self.step)


def adamw_reference_(
    x: torch.Tensor, grad: torch.Tensor, m: torch.Tensor, v: torch.Tensor, spec: AdamW
) -> None:
    """Compute the AdamW formulas line by line and update x, m and v in place. All tensors have the
    same shape and dtype."""
    m.mul_(spec.beta1).add_(grad, alpha=1.0 - spec.beta1)
    v.mul_(spec.beta2).add_(grad * grad, alpha=1.0 - spec.beta2)
    denominator = v.sqrt() / spec.v_correction + spec.eps
    x.mul_(spec.decay).sub_(spec.step_size * m / denominator)


def adamw_(
    x: torch.Tensor,
    grad: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    spec: AdamW,
    found_inf: torch.Tensor | None = None,
) -> None:
    """Compute one step in place with the kernel that torch.optim.AdamW(fused=True) uses.

    `found_inf`: fp32 scalar on x's device. If `found_inf` is 1, x, m and v stay unchanged.
    """
    torch._fused_adamw_(
        [x],
        [grad],
        [m],
        [v],
        [],
        [torch.tensor(float(spec.step), device=x.device)],
        lr=spec.lr,
        beta1=spec.beta1,
        beta2=spec.beta2,
        weight_decay=spec.weight_decay,
        eps=spec.eps,
        amsgrad=False,
        maximize=False,
        found_inf=found_inf,
    )

"""Largest difference of logits that rounding can cause between two computations of one model.

Let u be the unit roundoff of the arithmetic, W the largest number of terms in a dot product, and M
the number of modules with weights. Dot products are summed in fp32, so a module's result has a
relative error of about e = u + 2^-24 sqrt(W). Each module rounds twice: its result, and the result
of the elementwise operation that follows. The rounding errors are independent and uniform, with a
standard deviation of e / sqrt(3) each. After M modules, the relative error of the logits has the
standard deviation e sqrt(2 M / 3). The difference of two computations has sqrt(2) times that
deviation. The largest of N normally distributed differences is about sqrt(2 ln N) standard
deviations. Therefore:

    tolerance = RMS(logits) * (u + 2^-24 sqrt(W)) * sqrt(8 M ln(N) / 3)
"""

from __future__ import annotations

import math
from typing import Any

import torch

from tunesmith_schema.verification import Arithmetic

Untyped = Any  # Any: transformers is not typed

ROUNDOFF: dict[Arithmetic, float] = {
    "fp32": 2.0**-24,
    "tf32": 2.0**-11,
    "bf16": 2.0**-8,
    "int8": 1 / 254,
}
"""Unit roundoff: half of the distance between 1 and the next number. The largest int8 value is 127,
so the unit roundoff of int8 is 0.5 / 127."""
RULE = "RMS(logits) * (u + 2^-24 sqrt(W)) * sqrt(8 M ln(N) / 3)"


def arithmetic_of(dtype: torch.dtype, quantization: str, device: torch.device) -> Arithmetic:
    """Return the least precise number format in a model's matrix multiplications."""
    if quantization == "int8":
        return "int8"
    if dtype != torch.float32:
        return "bf16"
    return "tf32" if device.type == "cuda" else "fp32"


def coarser(one: Arithmetic, other: Arithmetic) -> Arithmetic:
    return max(one, other, key=lambda arithmetic: ROUNDOFF[arithmetic])


def tolerance(model: Untyped, logits: torch.Tensor, arithmetic: Arithmetic) -> float:
    """Return the largest difference from `logits` that rounding can cause if `model` computes these
    logits again."""
    modules, width = 0, 1
    for name, module in model.named_modules():
        own = [parameter for parameter in module.parameters(recurse=False)]
        if own and ".lora_" not in name:
            modules += 1
            width = max([width, *(parameter.shape[-1] for parameter in own if parameter.ndim > 1)])
    error = ROUNDOFF[arithmetic] + ROUNDOFF["fp32"] * math.sqrt(width)
    rms = float(logits.double().pow(2).mean().sqrt())
    return rms * error * math.sqrt(8 * modules * math.log(max(logits.numel(), 2)) / 3)

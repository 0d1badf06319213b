"""AdamW on bf16 weights with stochastic rounding and 8-bit moments: 4 bytes per weight.

Norms, biases and other small tensors use the AdamW of split_master.py instead: it needs 12 bytes
per weight, but loses no update to rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tunesmith_kernels.adamw import AdamW
from tunesmith_kernels.adamw_8bit import adamw_8bit_
from tunesmith_kernels.moment_codes import Moments, num_blocks

from .split_master import SplitMasterAdamW, State

SMALL = 4096
"""Minimum number of elements of a tensor with 8-bit moments; smaller tensors use
split_master.py."""
_MASK = (1 << 64) - 1


class StochasticAdamW(SplitMasterAdamW):
    """AdamW with stochastic rounding and 8-bit moments for large bf16 matrices."""

    def __init__(
        self,
        params: Iterable[torch.Tensor] | Iterable[dict[str, Any]],  # Any: torch's groups
        *,
        lr: float,
        seed: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        """The random numbers for rounding depend only on `seed`, the parameter's index and the
        step. A resume point therefore stores only the seed, in the parameter groups."""
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, seed=seed)

    def _fresh(self, parameter: torch.Tensor) -> State:
        size, device = parameter.numel(), parameter.device
        if parameter.dtype != torch.bfloat16 or parameter.dim() < 2 or size < SMALL:
            return super()._fresh(parameter)
        blocks = num_blocks(size)
        return {
            "m_code": torch.zeros(size, dtype=torch.int8, device=device),
            "m_scale": torch.zeros(blocks, dtype=torch.float32, device=device),
            "v_code": torch.zeros(size, dtype=torch.uint8, device=device),
            "v_scale": torch.zeros(blocks, dtype=torch.float32, device=device),
        }

    def _update(
        self,
        weight: torch.Tensor,
        grad: torch.Tensor,
        state: State,
        spec: AdamW,
        group: State,
        index: int,
    ) -> None:
        if "m_code" not in state:
            super()._update(weight, grad, state, spec, group, index)
            return
        moments = Moments(
            m_code=state["m_code"],
            m_scale=state["m_scale"],
            v_code=state["v_code"],
            v_scale=state["v_scale"],
        )
        seed = mix_seed(group["seed"], spec.step, index)
        adamw_8bit_(weight, moments, grad, spec, seed, self.found_inf)


def mix_seed(*numbers: int) -> int:
    """Hash the numbers to a 62-bit seed with the finaliser of splitmix64.

    Source: https://doi.org/10.1145/2660193.2660195."""
    x = 0
    for number in numbers:
        x = (x + number + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return x >> 2

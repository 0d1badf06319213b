"""Language-model head with random inputs. Its gradients can be computed by several functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tunesmith_kernels.log_prob import TokenLogProbs, token_log_probs, token_log_probs_reference

TRANSFORMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "softcap": 3.0, "logit_scale": 0.6},
]
Scored = Callable[..., TokenLogProbs]


@dataclass(frozen=True)
class Head:
    hidden: torch.Tensor  # [N, H]; all tensors are fp64
    weight: torch.Tensor  # [V, H]
    bias: torch.Tensor | None  # [V]
    targets: torch.Tensor  # [N] int64
    by_log_prob: torch.Tensor  # [N] upstream gradients
    by_entropy: torch.Tensor  # [N]

    @classmethod
    def random(
        cls,
        rows: int,
        vocabulary: int,
        width: int,
        *,
        bias: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Head:
        """Return values that `dtype` represents exactly, so that every precision has the same
        inputs."""

        def values(*shape: int, scale: float = 1.0) -> torch.Tensor:
            rounded = (torch.randn(*shape) * scale).to(dtype)
            return rounded.to(device=device, dtype=torch.float64)

        targets = torch.randint(vocabulary, (rows,), device=device)
        if rows > 1:
            targets[0], targets[1] = 0, vocabulary - 1
        return cls(
            values(rows, width),
            values(vocabulary, width, scale=width**-0.5),
            values(vocabulary) if bias else None,
            targets,
            values(rows),
            values(rows),
        )

    def leaves(self, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return hidden, weight and bias; all require gradients."""

        def leaf(part: torch.Tensor) -> torch.Tensor:
            return part.clone().to(dtype).requires_grad_()

        return leaf(self.hidden), leaf(self.weight), None if self.bias is None else leaf(self.bias)

    def gradients(
        self,
        function: Scored,
        dtype: torch.dtype,
        *,
        through_entropy: bool = False,
        **options: Any,
    ) -> tuple[TokenLogProbs, list[torch.Tensor]]:
        """Return the outputs, and the gradients of hidden, weight and bias for the upstream
        gradients."""
        leaves = self.leaves(dtype)
        if through_entropy and function is token_log_probs:
            options["entropy"] = "grad"
        scored = function(*leaves, self.targets, **options)
        total = (scored.log_probs * self.by_log_prob).sum()
        if through_entropy:
            assert scored.entropy is not None
            total = total + (scored.entropy * self.by_entropy).sum()
        wanted = [leaf for leaf in leaves if leaf is not None]
        return scored, list(torch.autograd.grad(total, wanted))

    def truth(
        self, *, through_entropy: bool = False, **options: Any
    ) -> tuple[TokenLogProbs, list[torch.Tensor]]:
        return self.gradients(
            token_log_probs_reference, torch.float64, through_entropy=through_entropy, **options
        )


def accumulate(value: torch.Tensor) -> None:
    """Call `value.backward()`, which is untyped in torch."""
    torch.autograd.backward(value)

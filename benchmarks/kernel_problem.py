"""Layer shapes of the kernel benchmarks, and the class that describes a measured operation."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one decoder layer and of the head, and the number of rows (one row per token)."""

    rows: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    rank: int = 32
    """Rank of the adapters."""

    def lengths(self) -> list[int]:
        """Return the lengths of packed texts; the lengths sum to `rows`. With 2,048 rows, the texts
        have 32 to 768 tokens; with other numbers of rows, lengths change proportionally."""
        draw, remaining, texts = random.Random(0), self.rows, []
        while remaining:
            least, most = max(1, self.rows // 64), max(2, self.rows * 3 // 8)
            texts.append(min(remaining, draw.randint(least, most)))
            remaining -= texts[-1]
        return texts


SHAPES = {
    "tiny": Shape(
        rows=5,
        hidden=48,
        heads=2,
        kv_heads=1,
        head_size=24,
        intermediate=100,
        vocabulary=131,
        rank=3,
    ),
    "llama-12m": Shape(
        rows=2048, hidden=384, heads=8, kv_heads=2, head_size=48, intermediate=1024, vocabulary=8192
    ),
    "llama-1b": Shape(
        rows=2048,
        hidden=2048,
        heads=32,
        kv_heads=8,
        head_size=64,
        intermediate=8192,
        vocabulary=128_256,
    ),
    "qwen-1.5b": Shape(
        rows=8192,
        hidden=1536,
        heads=12,
        kv_heads=2,
        head_size=128,
        intermediate=8960,
        vocabulary=151_936,
    ),
    "llama-8b": Shape(
        rows=8192,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_size=128,
        intermediate=14_336,
        vocabulary=128_256,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One operation. All its functions compute the same outputs from the same leaf tensors, and do
    not change these tensors."""

    leaves: Tensors
    ours: Function
    eager: Function
    least_bytes: int
    """Minimum bytes of one forward and one backward: every input is read once, every result written
    once."""
    others: Mapping[str, Function] = field(default_factory=dict)
    """Implementations that do not use our code, keyed by name."""
    liger: Function | None = None
    no_liger: str | None = None
    """Reason why Liger lacks this operation, or None."""


def leaf(*shape: int, device: torch.device, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, device=device) * scale).to(dtype).requires_grad_()


def liger_function(name: str) -> Any:  # Liger has no types
    """Return function `name` of liger_kernel.ops, or None if Liger cannot run here."""
    if why_no_liger() is not None:
        return None
    from liger_kernel import ops  # type: ignore[import-not-found, unused-ignore]  # optional

    return getattr(ops, name).apply


def why_no_liger() -> str | None:
    """Return the reason why Liger cannot run on this machine, or None if it can."""
    if not torch.cuda.is_available():
        return "needs a GPU"
    if importlib.util.find_spec("liger_kernel") is None:
        return "liger_kernel is not installed"
    return None

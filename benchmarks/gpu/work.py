"""What each operation of kernel_operations.OPERATIONS has to do, forward and backward together.

Either it moves bytes, and is held against the copy bandwidth, or it multiplies matrices, and is
held against the BLAS's own time for the same products. Formulas here, an operation a row; a test
wants one for every operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernel_operations import Shape
from .timing import Product


@dataclass(frozen=True, kw_only=True)
class Work:
    elements: int = 0
    """Read or written at the least, each input once and each result once; bytes by the dtype."""
    products: tuple[Product, ...] = ()
    """Empty: the operation is bound by bandwidth."""
    words: str
    """The formula, for whoever reads the results."""
    barred: bool = True
    """Whether the bar of its kind holds for it."""


def _rms_norm(s: Shape) -> Work:
    return Work(elements=5 * s.rows * s.hidden, words="x, y; dy, x, dx: 5 rows hidden")


def _rope(s: Shape) -> Work:
    heads = s.heads + s.kv_heads
    return Work(
        elements=4 * s.rows * heads * s.head_size,
        words="q and k in and out, twice: 4 rows (heads + kv_heads) head_size",
    )


def _gated(s: Shape) -> Work:
    return Work(
        elements=8 * s.rows * s.intermediate,
        words="gate and up, out; gate and up, dout, dgate and dup: 8 rows intermediate",
    )


WORK: dict[str, Callable[[Shape], Work]] = {
    "rms_norm": _rms_norm,
    "rope": _rope,
    "swiglu": _gated,
    "geglu": _gated,
}

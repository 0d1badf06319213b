"""Minimum work of each operation of kernel_operations.OPERATIONS, forward plus backward.

Moved bytes take at least their time at the copy bandwidth, products at least the BLAS's time for
the same products. An operation with both takes at least the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernel_operations import Shape
from .timing import Product


@dataclass(frozen=True, kw_only=True)
class Work:
    elements: int = 0
    """Elements read or written if each input is read and each result written once, except reads and
    writes of the products."""
    products: tuple[Product, ...] = ()
    """Matrix products. Empty: bandwidth bounds the operation."""
    attention: float = 0
    """Multiplications and additions of attention, which the BLAS does not offer."""
    words: str
    """Formula, for readers of the results."""
    barred: bool = True
    """True if the operation counts for the bar of its kind."""


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


def _qk_norm(s: Shape) -> Work:
    columns = (s.heads + s.kv_heads) * s.head_size
    return Work(
        elements=5 * s.rows * columns,
        words="q and k: x, y; dy, x, dx: 5 rows (heads + kv_heads) head_size. Our kernel works in "
        "place and its time includes a copy of the input: no bar",
        barred=False,
    )


def _attention(s: Shape) -> Work:
    pairs = sum(length**2 for length in s.lengths()) / 2
    return Work(
        attention=14 * pairs * s.heads * s.head_size,
        words="4 + 10 sum(length^2) / 2 heads head_size, against the BLAS rate on a square: no "
        "bar, because softmax keeps the best known kernels below this rate",
        barred=False,
    )


def _lora_qkv(s: Shape) -> Work:
    outs = [n * s.head_size for n in (s.heads, s.kv_heads, s.kv_heads)]
    return Work(
        elements=7 * s.rows * s.hidden,
        products=_lora(s.rows, s.hidden, outs, s.rank),
        words="x W', dy W, and for each adapter h A', its B', dy B, e A, e' h, dy' (h A'); "
        "the norm: x, h; x, h again; dh, x, dx: 7 rows hidden",
    )


def _lora_down(s: Shape) -> Work:
    return Work(
        elements=8 * s.rows * s.intermediate + 3 * s.rows * s.hidden,
        products=_lora(s.rows, s.intermediate, [s.hidden], s.rank),
        words="as lora_qkv with one adapter; SwiGLU: 8 rows intermediate; residual: 3 rows hidden",
    )


def _lora(rows: int, hidden: int, outs: list[int], rank: int) -> tuple[Product, ...]:
    """Products of frozen weights and adapters; all A's are one product, forward and backward."""
    out, ranks = sum(outs), rank * len(outs)
    whole = [(rows, hidden, out), (rows, out, hidden)]
    thin = [(rows, hidden, ranks), (rows, ranks, hidden), (ranks, rows, hidden)]
    each = [
        product
        for width in outs
        for product in ((rows, rank, width), (rows, width, rank), (width, rows, rank))
    ]
    return (*whole, *thin, *each)


def _log_prob(s: Shape) -> Work:
    return Work(
        elements=2 * s.rows * s.vocabulary,
        products=((s.rows, s.hidden, s.vocabulary), (s.rows, s.vocabulary, s.hidden)),
        words="h W' and (f q) W; logits in, f q out: 2 rows vocabulary",
    )


WORK: dict[str, Callable[[Shape], Work]] = {
    "rms_norm": _rms_norm,
    "rms_norm_gemma": _rms_norm,
    "rope": _rope,
    "swiglu": _gated,
    "geglu": _gated,
    "qk_norm": _qk_norm,
    "attention": _attention,
    "lora_qkv": _lora_qkv,
    "lora_down": _lora_down,
    "log_prob": _log_prob,
}

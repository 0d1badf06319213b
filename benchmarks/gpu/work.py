"""Minimum time of each operation in kernel_operations.OPERATIONS, forward plus backward.

Memory traffic takes at least the number of bytes divided by the copy bandwidth. Matrix products
take at least the BLAS time for the same shapes. An operation with memory traffic and matrix
products takes at least the sum of both times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..kernel_operations import Shape
from .timing import Product


@dataclass(frozen=True, kw_only=True)
class Work:
    elements: int = 0
    """Number of elements that an operation reads or writes, if the operation reads each input once
    and writes each result once. Elements that only matrix products read or write are not
    included."""
    products: tuple[Product, ...] = ()
    """Matrix products. If an operation has no matrix products, memory bandwidth limits the
    operation."""
    attention: float = 0
    """Number of multiplications and additions in attention. BLAS has no attention routine."""
    words: str
    """Formula of the numbers above, as text for readers of the results."""
    barred: bool = True
    """True if the operation has a required rate."""


def _rms_norm(s: Shape) -> Work:
    return Work(
        elements=5 * s.rows * s.hidden,
        words="5 * rows * hidden: forward reads x and writes y; backward reads dy and x, writes dx",
    )


def _rope(s: Shape) -> Work:
    heads = s.heads + s.kv_heads
    return Work(
        elements=4 * s.rows * heads * s.head_size,
        words="4 * rows * (heads + kv_heads) * head_size: forward and backward each read and write "
        "q and k",
    )


def _gated(s: Shape) -> Work:
    return Work(
        elements=8 * s.rows * s.intermediate,
        words="8 * rows * intermediate: forward reads gate and up and writes out; backward reads "
        "gate, up and d_out and writes d_gate and d_up",
    )


def _qk_norm(s: Shape) -> Work:
    columns = (s.heads + s.kv_heads) * s.head_size
    return Work(
        elements=5 * s.rows * columns,
        words="5 * rows * (heads + kv_heads) * head_size, the traffic of RMSNorm for q and k. No "
        "bar, because our kernel works in place and its time includes a copy of the input",
        barred=False,
    )


def _attention(s: Shape) -> Work:
    pairs = sum(length**2 for length in s.lengths()) / 2
    return Work(
        attention=14 * pairs * s.heads * s.head_size,
        words="(4 + 10) * sum(length^2) / 2 * heads * head_size operations, compared with the BLAS "
        "rate on square matrices. No required value, because softmax keeps all known kernels below "
        "this rate",
        barred=False,
    )


def _lora_qkv(s: Shape) -> Work:
    outs = [n * s.head_size for n in (s.heads, s.kv_heads, s.kv_heads)]
    return Work(
        elements=7 * s.rows * s.hidden,
        products=_lora(s.rows, s.hidden, outs, s.rank),
        words="products with the frozen weight in forward and backward, three products for the "
        "concatenated LoRA A matrices and three for each B; 7 * rows * hidden for the norm, which "
        "backward recomputes",
    )


def _lora_down(s: Shape) -> Work:
    return Work(
        elements=8 * s.rows * s.intermediate + 3 * s.rows * s.hidden,
        products=_lora(s.rows, s.intermediate, [s.hidden], s.rank),
        words="the products of lora_qkv with one adapter; 8 * rows * intermediate for SwiGLU and "
        "3 * rows * hidden for the residual",
    )


def _lora(rows: int, hidden: int, outs: list[int], rank: int) -> tuple[Product, ...]:
    """Return the matrix products with frozen weights and adapters. The LoRA A matrices are
    concatenated, so they count as one matrix; each B matrix counts separately."""
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
        words="two products, hidden with weight and gradient of the logits with weight; "
        "2 * rows * vocabulary: logits are read, their gradient is written",
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

"""torch's varlen attention is called as each torch that we take wants it, and what it is not called
for is named. A dense stand-in takes the kernel's place: none runs without a GPU."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.attention import varlen

from tunesmith_kernels import attention, attention_varlen
from tunesmith_kernels.attention import segment_attention_reference, why_tiles
from tunesmith_kernels.attention_varlen import why_not_varlen_here
from tunesmith_kernels.segments import AttentionShape, Segments

SHAPE = AttentionShape(heads=4, kv_heads=2, head_dim=8, scale=0.3)
LENGTHS = [5, 1, 17, 30]
PREFIXES = [(0, 0), (0, 5), (1, 4), (6, 23)]


def _dense(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, scale: float, window: tuple[int, int]
) -> Any:
    """What the kernels compute, by their documentation: `window` keys before the query, and none
    after it; -1 is no limit. The last query of a row stands at its last key."""
    assert window[1] == 0
    groups = q.shape[1] // k.shape[1]
    outputs = []
    for (start, stop), (first, after) in zip(
        pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True
    ):
        one = q[start:stop].transpose(0, 1)
        keys, values = (x[first:after].transpose(0, 1).repeat_interleave(groups, 0) for x in (k, v))
        queries = torch.arange(stop - start) + after - first - (stop - start)
        distance = queries[:, None] - torch.arange(after - first)[None]
        hidden = (distance < 0) | ((distance > window[0]) if window[0] >= 0 else distance < 0)
        scores = (one @ keys.transpose(1, 2) * scale).masked_fill(hidden, float("-inf"))
        outputs.append((scores.softmax(-1) @ values).transpose(0, 1))
    return torch.cat(outputs)


def of_torch_2_11(
    q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, max_q: int, max_k: int, *,
    return_aux: Any = None, scale: Any = None, window_size: tuple[int, int] = (-1, -1),
) -> Any:  # fmt: skip
    for cumulative, longest, rows in ((cu_q, max_q, q), (cu_k, max_k, k)):
        assert cumulative.dtype == torch.int32
        assert longest == cumulative.diff().max()
        assert len(rows) == cumulative[-1]
    assert all(x.stride(-1) == 1 for x in (q, k, v))
    return _dense(q, k, v, cu_q, cu_k, scale, window_size)


def of_torch_2_13(
    *arguments: Any, return_aux: Any = None, scale: Any = None,
    window_size: tuple[int, int] = (-1, -1), enable_gqa: bool = False,
) -> Any:  # fmt: skip
    q, k = arguments[:2]
    if not enable_gqa and q.shape[1] != k.shape[1]:
        raise ValueError("Try setting enable_gqa=True for GQA.")
    return of_torch_2_11(*arguments, scale=scale, window_size=window_size)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    attention_varlen._entry.cache_clear()
    why_not_varlen_here.cache_clear()


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


@pytest.mark.parametrize("window", [None, 1, 4, 100])
@pytest.mark.parametrize("version", [of_torch_2_11, of_torch_2_13])
@pytest.mark.parametrize("prefixes", [None, PREFIXES], ids=["plain", "prefixes"])
def test_what_varlen_is_given_makes_it_equal_the_reference(
    prefixes: list[tuple[int, int]] | None,
    version: Callable[..., Any],
    window: int | None,
    hopper: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", version)
    shape = AttentionShape(4, 2, 8, 0.3, window)
    segments = Segments.from_lengths(LENGTHS, prefixes=prefixes)
    angles = torch.rand(sum(LENGTHS), 4, dtype=torch.float64)
    tables = angles.cos(), angles.sin()
    qkv = torch.randn(sum(LENGTHS), shape.width, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(sum(LENGTHS), 32, dtype=torch.float64)
    found = attention._on_gpu(qkv * 1, *tables, segments, shape)
    expected = segment_attention_reference(qkv, *tables, segments, shape)
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found, qkv, upstream)
    (wanted,) = torch.autograd.grad(expected, qkv, upstream)
    torch.testing.assert_close(gradient, wanted)


def test_the_torch_that_is_installed_takes_our_arguments(hopper: None) -> None:
    """Its operator's own shape function runs, on tensors without memory."""
    segments = Segments.from_lengths(LENGTHS)
    q, k, v = (
        torch.empty(53, n, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
        for n in (4, 2, 2)
    )
    on_meta = Segments(segments.bounds, segments.cumulative.to("meta"))
    out = attention_varlen.varlen_attention(q, k, v, on_meta, SHAPE)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert [one.shape for one in gradients] == [x.shape for x in (q, k, v)]


def test_the_torch_that_is_installed_takes_more_keys_than_queries(hopper: None) -> None:
    segments = Segments.from_lengths(LENGTHS, prefixes=PREFIXES)
    assert segments.prefixes is not None
    on_meta = Segments(
        segments.bounds, segments.cumulative.to("meta"), segments.prefixes.to("meta")
    )
    q, k, v = (
        torch.empty(53, n, 8, device="meta", dtype=torch.bfloat16, requires_grad=True)
        for n in (4, 2, 2)
    )
    out = attention_varlen.varlen_attention(q, k, v, on_meta, SHAPE)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    gradients = torch.autograd.grad(out.sum(), (q, k, v))
    assert [one.shape for one in gradients] == [x.shape for x in (q, k, v)]


def test_what_many_rows_add_to_a_key_is_summed_in_fp32() -> None:
    """In bf16, 256 + 1 is 256."""
    x = torch.zeros(2, 1, 1, dtype=torch.bfloat16, requires_grad=True)
    index = torch.tensor([0] * 9 + [1])
    upstream = torch.tensor([256.0, *[1.0] * 8, 3.0], dtype=torch.bfloat16)
    attention_varlen._gathered(x, index).backward(upstream[:, None, None])
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [264.0, 3.0]


def test_an_old_card_and_a_torch_without_it_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    assert why_not_varlen_here(torch.device("cpu")) == "device cpu"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert why_not_varlen_here(cuda) == "compute capability 7.5, FlashAttention requires 8.0"
    why_not_varlen_here.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert why_not_varlen_here(cuda) == "torch was built without FlashAttention"
    assert why_tiles(torch.empty(3, SHAPE.width), SHAPE) == "device cpu"


def test_a_fa3_that_does_not_fit_leaves_fa2_in_use_and_says_so(
    hopper: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = types.ModuleType(attention_varlen._FA3)
    broken.__spec__ = types.SimpleNamespace(name=attention_varlen._FA3)  # type: ignore[assignment]  # all that find_spec asks
    monkeypatch.setitem(sys.modules, attention_varlen._FA3, broken)
    with pytest.warns(UserWarning, match="FlashAttention 3.*flash_attn_interface"):
        attention_varlen._entry((9, 0))

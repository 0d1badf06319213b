"""NF4 weights come out as bitsandbytes gives them, bit for bit."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from tunesmith_kernels.dispatch import uses_triton
from tunesmith_kernels.lora import Adapter, Norm, Projection, lora_linear
from tunesmith_kernels.nf4 import nf4_dequantize, nf4_reference, side_by_side
from tunesmith_kernels.nf4_types import NF4Scales, NF4Weight
from tunesmith_kernels.rms_norm import NormKind

SHAPES = [(64, 64), (1, 64), (7, 33), (3, 5), (129, 200), (40, 1030)]


@pytest.fixture(scope="module")
def functional() -> Any:  # Any: bitsandbytes is not typed
    """bitsandbytes' own, also where a trainer in this process has hidden it (process.py)."""
    if "bitsandbytes" in sys.modules and sys.modules["bitsandbytes"] is None:
        del sys.modules["bitsandbytes"]
    import bitsandbytes.functional

    return bitsandbytes.functional


def quantized(functional: Any, x: torch.Tensor, *, block: int, nested: bool) -> tuple[Any, Any]:
    packed, state = functional.quantize_4bit(
        x, blocksize=block, quant_type="nf4", compress_statistics=nested
    )
    return packed, state


def as_weight(packed: torch.Tensor, state: Any, device: torch.device) -> NF4Weight:
    scales = None
    if state.nested:
        scales = NF4Scales(
            code=state.state2.code.to(device),
            absmax=state.state2.absmax.to(device),
            offset=state.offset.to(device),
        )
    return NF4Weight(
        packed=packed.view(-1).to(device),
        absmax=state.absmax.to(device),
        block=state.blocksize,
        shape=tuple(state.shape),
        scales=scales,
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("nested", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.usefixtures("small_tiles")
def test_weights_are_bitsandbytes_bit_for_bit(
    functional: Any,
    shape: tuple[int, int],
    dtype: torch.dtype,
    nested: bool,
    device: torch.device,
) -> None:
    torch.use_deterministic_algorithms(False)  # bitsandbytes leaves a tail of padding as it was
    packed, state = quantized(functional, torch.randn(shape).to(dtype), block=64, nested=nested)
    theirs = functional.dequantize_4bit(packed, state)
    weight = as_weight(packed, state, device)
    assert same_bits(nf4_reference(as_weight(packed, state, theirs.device), dtype), theirs)
    if dtype == torch.bfloat16 and device.type == "cpu" and uses_interpreter(weight):
        # triton's interpreter truncates to bf16 where hardware rounds: fp32 proves the kernel.
        torch.testing.assert_close(nf4_dequantize(weight, dtype), theirs, rtol=2**-7, atol=0)
    else:
        assert same_bits(nf4_dequantize(weight, dtype).cpu(), theirs)


@pytest.mark.gpu
@pytest.mark.parametrize("nested", [False, True], ids=["single", "double"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(14_336, 4096), (4096, 14_336), (8960, 1536)], ids=str)
def test_real_weights_are_bitsandbytes_bit_for_bit(
    functional: Any, shape: tuple[int, int], dtype: torch.dtype, nested: bool
) -> None:
    """Projections of Llama 3.1 8B and Qwen 2.5 1.5B, quantised where they are used."""
    torch.use_deterministic_algorithms(False)  # as above
    x = torch.randn(shape, device="cuda").to(dtype)
    packed, state = quantized(functional, x, block=64, nested=nested)
    weight = as_weight(packed, state, x.device)
    assert same_bits(nf4_dequantize(weight, dtype), functional.dequantize_4bit(packed, state))


def uses_interpreter(weight: NF4Weight) -> bool:
    return uses_triton(weight.packed) and not weight.packed.is_cuda


def test_rows_that_end_within_a_block(functional: Any, device: torch.device) -> None:
    """Blocks count on from row to row. With AVX-512 bitsandbytes 0.50.2 gets rows of 48 wrong: the
    same weights in rows of 64 are the truth."""
    packed, state = quantized(functional, torch.randn(48, 48), block=64, nested=True)
    ours = nf4_dequantize(as_weight(packed, state, device), torch.float32)
    state.shape = torch.Size([36, 64])
    assert same_bits(ours.cpu().flatten(), functional.dequantize_4bit(packed, state).flatten())


@pytest.mark.parametrize("adapters", [False, True])
def test_a_linear_node_on_nf4_is_the_node_on_widened_weights(
    functional: Any, adapters: bool, device: torch.device
) -> None:
    """Outputs and every gradient, of a node as q, k and v have it."""
    outs, hidden = (64, 32, 32), 64
    packed = [
        as_weight(
            *quantized(functional, torch.randn(out, hidden) / 8, block=64, nested=True),
            device=device,
        )
        for out in outs
    ]
    wide = [nf4_dequantize(weight, torch.float32) for weight in packed]
    x = torch.randn(5, hidden, device=device)
    norm = torch.rand(hidden, device=device)
    a = [torch.randn(4, hidden, device=device) for _ in outs]
    b = [torch.randn(out, 4, device=device) for out in outs]
    bias = [torch.randn(out, device=device) for out in outs]
    found = []
    kinds: list[list[Any]] = [[*packed], [*wide]]
    for weights in kinds:
        leaves = [t.clone().requires_grad_() for t in (x, norm, *a, *b, *bias)]
        x_leaf, norm_leaf, rest = leaves[0], leaves[1], leaves[2:]
        y = lora_linear(
            x_leaf,
            [
                Projection(
                    weight, rest[6 + i], Adapter(rest[i], rest[3 + i], 0.5) if adapters else None
                )
                for i, weight in enumerate(weights)
            ],
            norm=Norm(norm_leaf, 1e-6, NormKind.LLAMA),
        )
        y.square().sum().backward()
        found.append([y.detach(), *(leaf.grad for leaf in leaves)])
    for ours, exact in zip(*found, strict=True):
        assert (ours is None) == (exact is None)
        assert ours is None or (exact is not None and same_bits(ours, exact))


def test_widened_weights_are_not_kept_for_backward(functional: Any) -> None:
    packed = as_weight(
        *quantized(functional, torch.randn(64, 64), block=64, nested=True),
        device=torch.device("cpu"),
    )
    x = torch.randn(2, 64, requires_grad=True)
    y = lora_linear(x, [Projection(packed)])
    assert y.grad_fn is not None
    saved = y.grad_fn.saved_tensors  # type: ignore[attr-defined]  # of autograd's functions
    assert all(one is None or one.numel() < 64 * 64 for one in saved)


@pytest.mark.parametrize("block", [32, 128, 256])
def test_other_blocks(functional: Any, block: int, device: torch.device) -> None:
    packed, state = quantized(functional, torch.randn(70, 66), block=block, nested=True)
    theirs = functional.dequantize_4bit(packed, state)
    ours = nf4_dequantize(as_weight(packed, state, device), torch.float32)
    assert same_bits(ours.cpu(), theirs)


def test_several_lie_side_by_side(functional: Any, device: torch.device) -> None:
    weights = [
        as_weight(
            *quantized(functional, torch.randn(rows, 48), block=64, nested=True), device=device
        )
        for rows in (48, 16, 20)
    ]
    whole = side_by_side(weights, torch.float32)
    assert whole.shape == (84, 48)
    alone = torch.cat([nf4_dequantize(weight, torch.float32) for weight in weights])
    assert torch.equal(whole, alone)


def test_sizes_that_do_not_belong_together_are_named() -> None:
    good = NF4Weight(
        packed=torch.zeros(32, dtype=torch.uint8), absmax=torch.ones(1), block=64, shape=(8, 8)
    )
    with pytest.raises(ValueError, match=r"packed must be uint8 \[32\] for weights \[8, 8\]"):
        nf4_dequantize(replace(good, packed=good.packed[1:]), torch.float32)
    with pytest.raises(ValueError, match=r"absmax must be torch.float32 \[1\]"):
        nf4_dequantize(replace(good, absmax=torch.ones(2)), torch.float32)

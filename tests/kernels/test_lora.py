"""Projections with adapters as one node: the reference, in value and every gradient."""

from __future__ import annotations

import pytest
import torch

from tunesmith_kernels.lora import Adapter, Projection, lora_linear, lora_linear_reference
from tunesmith_kernels.rms_norm import NormKind

from .accuracy import assert_exact, assert_no_worse, relative_error
from .lora_nodes import NODES, Node, frozen_base, values, with_rank

every_node = pytest.mark.parametrize("node", NODES.values(), ids=list(NODES))


def _close(ours: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, one in ours.items():
        assert torch.allclose(one, expected[name], rtol=1e-9, atol=1e-11), name


@every_node
@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
def test_float64_equals_the_reference(node: Node, fused: bool) -> None:
    tensors = node.draw()
    weights = [tensors[name] for name in tensors if name.startswith("weight")]
    whole = torch.cat(weights) if fused else None
    ours = values(node, lora_linear, tensors, fused_weight=whole)
    _close(ours, values(node, lora_linear_reference, tensors))


@every_node
def test_a_frozen_base_gets_no_gradient_and_changes_no_other(node: Node) -> None:
    tensors = node.draw()
    frozen = frozen_base(tensors)
    ours = values(node, lora_linear, tensors, frozen)
    assert not frozen & ours.keys()
    _close(ours, values(node, lora_linear_reference, tensors, frozen))


@pytest.mark.parametrize("trained", ["x", "norm", "a0", "b2", "weight1", "bias0", "residual"])
def test_each_tensor_may_be_the_only_one_that_is_trained(trained: str) -> None:
    node = Node(norm=NormKind.LLAMA, bias=True, residual=True)
    tensors = node.draw()
    frozen = frozenset(tensors) - {trained}
    ours = values(node, lora_linear, tensors, frozen)
    assert ours.keys() == {"out", trained}
    _close(ours, values(node, lora_linear_reference, tensors, frozen))


@every_node
def test_fp32_equals_float64(node: Node, device: torch.device) -> None:
    tensors = {name: x.to(device) for name, x in node.draw(torch.float32).items()}
    ours = values(node, lora_linear, tensors)
    truth = values(node, lora_linear_reference, {name: x.double() for name, x in tensors.items()})
    for name, one in ours.items():
        assert_exact(one, truth[name])


@pytest.mark.parametrize("rank", [1, 2, 16, 40])
def test_any_rank(rank: int) -> None:
    """Also one above the layer's own sizes."""
    node = with_rank(NODES["qkv"], rank)
    _close(*(values(node, f, node.draw()) for f in (lora_linear, lora_linear_reference)))


BF16_NODES = [
    Node(rows=(1, 200), inputs=64, outs=(64, 32, 32), ranks=(8, 8, 8), norm=NormKind.LLAMA),
    Node(rows=(1, 200), inputs=64, outs=(32,), ranks=(8,), scales=(2.0,), activation="silu"),
    Node(rows=(1, 200), inputs=64, outs=(64,), ranks=(8,), scales=(2.0,), residual=True),
]


@pytest.mark.parametrize("node", BF16_NODES, ids=["qkv", "down", "out"])
def test_bf16_is_no_worse_than_the_reference(node: Node) -> None:
    tensors = node.draw(torch.bfloat16)
    ours, eager = (values(node, f, tensors) for f in (lora_linear, lora_linear_reference))
    exact = {name: x.double() for name, x in tensors.items()}
    truth = values(node, lora_linear_reference, exact)
    for name, one in ours.items():
        assert_no_worse(one, eager[name], truth[name])


LLAMA_8B = {
    "qkv": Node(
        rows=(1, 2047),
        inputs=4096,
        outs=(4096, 1024, 1024),
        ranks=(16, 16, 16),
        norm=NormKind.LLAMA,
    ),
    "out": Node(
        rows=(1, 2047), inputs=4096, outs=(4096,), ranks=(16,), scales=(2.0,), residual=True
    ),
    "gate-up": Node(
        rows=(1, 2047),
        inputs=4096,
        outs=(14_336, 14_336),
        ranks=(16, 16),
        scales=(2.0, 2.0),
        norm=NormKind.LLAMA,
    ),
    "down": Node(
        rows=(1, 2047),
        inputs=14_336,
        outs=(4096,),
        ranks=(16,),
        scales=(2.0,),
        activation="silu",
        residual=True,
    ),
}


@pytest.mark.gpu
@pytest.mark.parametrize("node", LLAMA_8B.values(), ids=list(LLAMA_8B))
def test_real_shapes(node: Node) -> None:
    halves = {name: x.cuda() for name, x in node.draw(torch.bfloat16).items()}
    frozen = frozen_base(halves)
    exact = {name: x.double() for name, x in halves.items()}
    truth = values(node, lora_linear_reference, exact, frozen)
    del exact
    ours = values(node, lora_linear, {name: x.float() for name, x in halves.items()}, frozen)
    for name, one in ours.items():
        assert relative_error(one, truth[name]) <= 1e-5, name
    ours, eager = (values(node, f, halves, frozen) for f in (lora_linear, lora_linear_reference))
    for name, one in ours.items():
        assert_no_worse(one, eager[name], truth[name])


@pytest.mark.parametrize("node", BF16_NODES, ids=["qkv", "down", "out"])
def test_autocast_computes_in_bf16_and_hands_back_the_parameters_dtype(node: Node) -> None:
    """Full tuning in bf16: fp32 weights and residual stream. x is bf16 after an activation."""
    tensors = node.draw(torch.float32)
    truth = values(node, lora_linear_reference, {name: x.double() for name, x in tensors.items()})
    if node.activation:
        tensors["x"] = tensors["x"].bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        ours = values(node, lora_linear, tensors)
        eager = values(node, lora_linear_reference, tensors)
    assert ours["out"].dtype == (torch.float32 if node.residual else torch.bfloat16)
    for name, one in ours.items():
        assert name == "out" or one.dtype == tensors[name].dtype
        assert_no_worse(one, eager[name].to(one.dtype), truth[name])


def test_fp32_adapters_on_a_bf16_base_keep_fp32_gradients() -> None:
    """As PEFT makes them by default. The activations stay bf16: no input is upcast and kept."""
    node = BF16_NODES[0]
    tensors = node.draw(torch.bfloat16)
    exact = {name: x.double() for name, x in tensors.items()}
    for name in tensors:
        if name.startswith(("a", "b")):
            tensors[name] = tensors[name].float()
    kept: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        ours = values(node, lora_linear, tensors, frozen_base(tensors))
    truth = values(node, lora_linear_reference, exact, frozen_base(tensors))
    assert ours["out"].dtype == torch.bfloat16
    assert all(x.dtype == torch.bfloat16 for x in kept if x.shape[-1] == node.inputs)
    for name, one in ours.items():
        eager = truth[name].bfloat16().to(one.dtype)
        assert one.dtype == (torch.float32 if name[0] in "ab" else torch.bfloat16)
        # Rounding the exact result once is the least error bf16 has; a chain has a few of them.
        error = (one.double() - truth[name]).norm() / truth[name].norm()
        assert error < 4 * (eager.double() - truth[name]).norm() / truth[name].norm()


@pytest.mark.parametrize("residual_scale", [1.0, 0.5])
def test_a_small_adapter_beside_a_large_residual_is_not_rounded_away(residual_scale: float) -> None:
    """A tenth of a bf16 step of the residual: lost in any one number, there in their mean."""
    rows, size, rank = 4000, 32, 8
    x, weight = torch.randn(rows, size), torch.randn(size, size) / size**0.5
    a, b = torch.randn(rank, size) / size**0.5, torch.randn(size, rank) * 2e-3
    residual = torch.randn(rows, size) * 4
    halves = [tensor.bfloat16() for tensor in (x, weight, a, b, residual)]
    x, weight, a, b, residual = halves
    share = residual_scale * (x.double() @ a.double().T @ b.double().T)
    with_it, without = (
        lora_linear(
            x,
            [Projection(weight, None, adapter)],
            residual=residual,
            residual_scale=residual_scale,
        ).double()
        for adapter in (Adapter(a, b, 1.0), None)
    )
    seen = ((with_it - without) * share).sum() / share.square().sum()
    assert 0.9 < seen < 1.1


def test_a_single_weight_is_not_copied() -> None:
    """A copy of every down projection would be kept until backward."""
    kept: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.untyped_storage().data_ptr())
        return x

    weight = torch.randn(6, 12)
    x = torch.randn(3, 12, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        lora_linear(x, [Projection(weight)])
    assert weight.untyped_storage().data_ptr() in kept


def test_nothing_that_somebody_holds_is_written_to() -> None:
    """Inputs, parameters, the upstream gradient and the output before and after backward."""
    for node in NODES.values():
        leaves = {name: x.requires_grad_() for name, x in node.draw().items()}
        before = {name: x.detach().clone() for name, x in leaves.items()}
        out = node.call(lora_linear, leaves)
        upstream = torch.randn_like(out)
        copies = out.detach().clone(), upstream.clone()
        torch.autograd.grad(out, list(leaves.values()), upstream)
        assert torch.equal(out, copies[0])
        assert torch.equal(upstream, copies[1])
        for name, x in leaves.items():
            assert torch.equal(x, before[name]), name


@every_node
def test_a_retained_graph_gives_the_same_gradients_again(node: Node) -> None:
    leaves = {name: x.requires_grad_() for name, x in node.draw().items()}
    loss = node.call(lora_linear, leaves).square().sum()
    first = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
    second = torch.autograd.grad(loss, list(leaves.values()))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_a_node_used_twice_adds_both_gradients() -> None:
    node = NODES["qkv"]
    tensors = node.draw()

    def twice(function: object) -> list[torch.Tensor]:
        leaves = {name: x.clone().requires_grad_() for name, x in tensors.items()}
        shifted = {**leaves, "x": leaves["x"] * 2 + 1}
        loss = node.call(function, leaves).sin().sum() + node.call(function, shifted).cos().sum()
        return list(torch.autograd.grad(loss, list(leaves.values())))

    for one, other in zip(twice(lora_linear), twice(lora_linear_reference), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    node = NODES["qkv"]
    leaves = {name: x.requires_grad_() for name, x in node.draw().items()}
    loss = node.call(lora_linear, leaves).square().sum()
    (gradient,) = torch.autograd.grad(loss, [leaves["x"]], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_row_is_bit_for_bit_untouched_by_the_others() -> None:
    node = NODES["qkv"]
    tensors = node.draw(torch.float32)
    other = {**tensors, "x": tensors["x"].clone()}
    other["x"][0] = torch.nan
    one, two = (values(node, lora_linear, x) for x in (tensors, other))
    assert torch.equal(one["out"][1], two["out"][1])
    assert torch.equal(one["x"][1], two["x"][1])


@every_node
def test_no_gradient_is_computed_where_none_is_wanted(node: Node) -> None:
    out = node.call(lora_linear, node.draw())
    assert not out.requires_grad
    torch.testing.assert_close(
        out, node.call(lora_linear_reference, node.draw()), rtol=1e-9, atol=1e-12
    )

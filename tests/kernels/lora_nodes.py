"""Random projection nodes with and without adapters, and their values and gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from tunesmith_kernels.gated_activation import Activation
from tunesmith_kernels.lora import Adapter, Norm, Projection
from tunesmith_kernels.rms_norm import NormKind


@dataclass(frozen=True, kw_only=True)
class Node:
    """Options of `draw`: sizes, and the tensors to make."""

    rows: tuple[int, ...] = (2, 7)
    inputs: int = 12
    outs: tuple[int, ...] = (10, 6, 6)
    ranks: tuple[int, ...] = (3, 0, 5)
    """0: no adapter."""
    scales: tuple[float, ...] = (0.5, 1.0, 2.0)
    bias: bool = False
    norm: NormKind | None = None
    activation: Activation | None = None
    residual: bool = False
    residual_scale: float = 1.0

    def draw(self, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
        """Make tensors by name. Every dtype gets the same numbers."""
        generator = torch.Generator().manual_seed(0)

        def normal(*size: int) -> torch.Tensor:
            return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

        width = self.inputs * (2 if self.activation else 1)
        tensors = {"x": normal(*self.rows, width)}
        if self.norm is not None:
            tensors["norm"] = normal(self.inputs)
        if self.residual:
            tensors["residual"] = normal(*self.rows, sum(self.outs))
        for i, (out, rank) in enumerate(zip(self.outs, self.ranks, strict=True)):
            tensors[f"weight{i}"] = normal(out, self.inputs) / self.inputs**0.5
            if self.bias:
                tensors[f"bias{i}"] = normal(out)
            if rank:
                tensors[f"a{i}"] = normal(rank, self.inputs) / self.inputs**0.5
                tensors[f"b{i}"] = normal(out, rank) / rank**0.5
        return tensors

    def call(
        self,
        function: Any,  # the operation or its reference
        tensors: dict[str, torch.Tensor],
        dropout: float = 0.0,
        **settings: Any,  # fused_weight, only for the operation
    ) -> torch.Tensor:
        projections = []
        for i, rank in enumerate(self.ranks):
            adapter = None
            if rank:
                a, b = tensors[f"a{i}"], tensors[f"b{i}"]
                adapter = Adapter(a, b, self.scales[i], dropout)
            projections.append(Projection(tensors[f"weight{i}"], tensors.get(f"bias{i}"), adapter))
        out: torch.Tensor = function(
            tensors["x"],
            projections,
            norm=Norm(tensors["norm"], 1e-5, self.norm) if self.norm else None,
            activation=self.activation,
            residual=tensors.get("residual"),
            residual_scale=self.residual_scale,
            **settings,
        )
        return out


NODES = {
    "plain": Node(ranks=(0, 0, 0)),
    "qkv": Node(norm=NormKind.LLAMA, bias=True),
    "gemma-qkv": Node(norm=NormKind.GEMMA, ranks=(4, 4, 4)),
    "olmo-mlp": Node(outs=(9, 9), ranks=(2, 2), scales=(1.0, 0.25)),
    "gate-up": Node(norm=NormKind.LLAMA, outs=(11, 11), ranks=(7, 1), scales=(1.5, 3.0)),
    "out": Node(outs=(12,), ranks=(4,), scales=(2.0,), residual=True),
    "granite-out": Node(outs=(12,), ranks=(4,), scales=(2.0,), residual=True, residual_scale=0.3),
    "down": Node(outs=(8,), ranks=(3,), scales=(0.7,), activation="silu", residual=True),
    "gelu-down": Node(outs=(8,), ranks=(0,), scales=(1.0,), activation="gelu", bias=True),
    "tanh-down": Node(outs=(8,), ranks=(9,), scales=(0.1,), activation="gelu_tanh", residual=True),
    "one-row": Node(rows=(1,), norm=NormKind.OLMO, residual=True, residual_scale=2.0, bias=True),
    "single-column": Node(inputs=1, outs=(1, 1), ranks=(1, 0), scales=(1.0, 1.0)),
    "no-rows": Node(rows=(0,), norm=NormKind.LLAMA, bias=True, residual=True),
}


def values(
    node: Node,
    function: Any,  # the operation or its reference
    tensors: dict[str, torch.Tensor],
    frozen: frozenset[str] = frozenset(),
    **settings: Any,  # as of Node.call
) -> dict[str, torch.Tensor]:
    """Return "out", and the gradient of every trained tensor under its name."""
    leaves = {
        name: x.detach().clone().requires_grad_(name not in frozen) for name, x in tensors.items()
    }
    out = node.call(function, leaves, **settings)
    upstream = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    out.backward(upstream.to(out))
    found = {name: x.grad for name, x in leaves.items() if x.grad is not None}
    return {"out": out.detach(), **found}


def frozen_base(tensors: dict[str, torch.Tensor]) -> frozenset[str]:
    """Freeze base weights, biases and norms, as in LoRA training."""
    return frozenset(name for name in tensors if name.startswith(("weight", "bias", "norm")))


def with_rank(node: Node, rank: int) -> Node:
    return replace(node, ranks=tuple(rank for _ in node.ranks))

"""Read linear modules of transformers and PEFT as arguments for our kernels.

Supported modules are plain linear layers with an optional LoRA adapter: `y = x W' + b + s (x A')
B'`. For all other modules, Unsupported is raised with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import peft.tuners.lora
import torch
from peft.tuners.lora.layer import Linear as LoraLinear

from tunesmith_kernels.lora import Adapter, Projection
from tunesmith_worker.engine.model.quantization import is_nf4, lora_over_nf4, nf4_weight

Untyped = Any  # Any: peft is not typed


class Projections:
    """One or several linear modules with the same input."""

    def __init__(self, modules: Sequence[Untyped]) -> None:
        """Raises Unsupported."""
        for module in modules:
            check_linear(module)
        self._modules = list(modules)
        bases = [_base(module) for module in modules]
        all_alike = len({base.weight.requires_grad for base in bases}) == 1
        packed = [is_nf4(base) for base in bases]
        if any(packed) and not all(packed):
            raise Unsupported("only some of the projections are quantized")
        fusable = len(bases) > 1 and all_alike and not any(packed)
        self._fused = FusedWeight(bases) if fusable else None

    def current(self) -> tuple[list[Projection], torch.Tensor | None]:
        """Return the projections, and their weights as one tensor if the weights are fused."""
        fused = self._fused.get() if self._fused is not None else None
        return [read_projection(module) for module in self._modules], fused

    def release(self) -> None:
        if self._fused is not None:
            self._fused.release()


class Unsupported(Exception):
    """Error that states why a module is left unchanged."""


def check_linear(module: Untyped) -> None:
    """Raise Unsupported if our kernels would compute something different from `module`."""
    base = _base(module)
    if type(base) is not torch.nn.Linear and not is_nf4(base):
        raise Unsupported(f"{type(base).__name__} is not a plain linear layer")
    if module is base:
        return
    if type(module) is not LoraLinear and not (is_nf4(base) and type(module) is lora_over_nf4()):
        raise Unsupported(f"PEFT's {type(module).__name__} is not plain LoRA")
    if module.merged:
        raise Unsupported("an adapter is merged")
    if len(module.active_adapters) != 1:
        raise Unsupported(f"{len(module.active_adapters)} adapters are active")
    (name,) = module.active_adapters
    if name in module.lora_variant:
        raise Unsupported(f"LoRA variant {type(module.lora_variant[name]).__name__}")
    if name in module.lora_A and module.lora_B[name].bias is not None:
        raise Unsupported("LoRA with a bias")


def _base(module: Untyped) -> Untyped:
    return module.base_layer if isinstance(module, peft.tuners.lora.LoraLayer) else module


def read_projection(module: Untyped) -> Projection:
    base = _base(module)
    weight = nf4_weight(base) if is_nf4(base) else base.weight
    if module is base:
        return Projection(weight, base.bias)
    if module.disable_adapters and module.merged:
        module.unmerge()  # PEFT's forward also unmerges
    if module.disable_adapters or module.merged:
        return Projection(weight, base.bias)
    (name,) = module.active_adapters
    if name not in module.lora_A:
        return Projection(weight, base.bias)
    dropout = module.lora_dropout[name]
    adapter = Adapter(
        a=module.lora_A[name].weight,
        b=module.lora_B[name].weight,
        scale=float(module.scaling[name]),
        dropout=float(getattr(dropout, "p", 0.0)) if dropout.training else 0.0,
    )
    return Projection(weight, base.bias, adapter)


class FusedWeight:
    """Several weights in one tensor, to compute all projections with one GEMM.

    The parameters become views of the fused tensor. No weight is stored twice. If an optimizer
    updates a parameter in place, the fused tensor changes too. Saved files stay the same.
    """

    def __init__(self, modules: Sequence[torch.nn.Linear]) -> None:
        """Each module in `modules` has a weight [out_i, in]."""
        self._modules = list(modules)
        self._fuse()

    def get(self) -> torch.Tensor | None:
        """Return the fused weight [sum of out_i, in]; None while dtypes or devices differ.

        The weights are fused again if a parameter's memory was replaced, for example by `.to()` or
        `load_state_dict(assign=True)`."""
        if self._addresses() != self._fused_addresses:
            self._fuse()
        return self._tensor

    def release(self) -> None:
        """Give each parameter its own memory again."""
        with torch.no_grad():
            for module in self._modules:
                module.weight.data = module.weight.data.clone()

    def _addresses(self) -> list[int]:
        return [module.weight.data_ptr() for module in self._modules]

    def _fuse(self) -> None:
        weights = [module.weight for module in self._modules]
        self._tensor = None
        if len({(weight.dtype, weight.device) for weight in weights}) == 1:
            with torch.no_grad():
                self._tensor = torch.cat([weight.data for weight in weights])
                sizes = [len(weight) for weight in weights]
                for weight, view in zip(weights, self._tensor.split(sizes), strict=True):
                    weight.data = view
        self._fused_addresses = self._addresses()

"""transformers' and PEFT's linear modules, read as what the kernels take.

A module that does anything else than y = x W' + b + s (x A') B' is refused with the reason.
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
    """One or several linear modules that read the same input."""

    def __init__(self, modules: Sequence[Untyped]) -> None:
        """Raises Unsupported."""
        for module in modules:
            check_linear(module)
        self._modules = list(modules)
        bases = [_base(module) for module in modules]
        alike = len({base.weight.requires_grad for base in bases}) == 1
        packed = [is_nf4(base) for base in bases]
        if any(packed) and not all(packed):
            raise Unsupported("some of its projections are quantised, others not")
        fusable = len(bases) > 1 and alike and not any(packed)
        self._fused = FusedWeight(bases) if fusable else None

    def current(self) -> tuple[list[Projection], torch.Tensor | None]:
        """The projections as they stand, and their weights as one tensor."""
        fused = self._fused.get() if self._fused is not None else None
        return [read_projection(module) for module in self._modules], fused

    def release(self) -> None:
        if self._fused is not None:
            self._fused.release()


class Unsupported(Exception):
    """Why a module stays stock."""


def check_linear(module: Untyped) -> None:
    """Raises Unsupported unless the kernels compute exactly what `module` does."""
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
        raise Unsupported("LoRA with a bias of its own")


def _base(module: Untyped) -> Untyped:
    return module.base_layer if isinstance(module, peft.tuners.lora.LoraLayer) else module


def read_projection(module: Untyped) -> Projection:
    base = _base(module)
    weight = nf4_weight(base) if is_nf4(base) else base.weight
    if module is base:
        return Projection(weight, base.bias)
    if module.disable_adapters and module.merged:
        module.unmerge()  # as its own forward does
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
    def __init__(self, modules: Sequence[torch.nn.Linear]) -> None:
        """`modules`: weights [out_i, in]."""
        self._modules = list(modules)
        self._fuse()

    def get(self) -> torch.Tensor | None:
        """[sum of out_i, in]; None while the weights differ in dtype or device. Fused anew where
        somebody has given one other memory (`.to()`, `load_state_dict(assign=True)`)."""
        if self._now() != self._places:
            self._fuse()
        return self._whole

    def release(self) -> None:
        """Give every parameter memory of its own again."""
        with torch.no_grad():
            for module in self._modules:
                module.weight.data = module.weight.data.clone()

    def _now(self) -> list[int]:
        return [module.weight.data_ptr() for module in self._modules]

    def _fuse(self) -> None:
        weights = [module.weight for module in self._modules]
        self._whole = None
        if len({(weight.dtype, weight.device) for weight in weights}) == 1:
            with torch.no_grad():
                self._whole = torch.cat([weight.data for weight in weights])
                sizes = [len(weight) for weight in weights]
                for weight, view in zip(weights, self._whole.split(sizes), strict=True):
                    weight.data = view
        self._places = self._now()

"""Load 4-bit and 8-bit base models with bitsandbytes, and pass the weights to our kernels.

transformers imports bitsandbytes only if a recipe needs it. This module never imports bitsandbytes;
it recognises bitsandbytes' layers by class name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import peft
import torch
import transformers

from tunesmith_kernels.nf4_types import NF4Scales, NF4Weight
from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError

Untyped = Any  # Any: transformers, PEFT and bitsandbytes are not typed


def quantization_config(kind: Literal["nf4", "int8"], dtype: torch.dtype) -> Untyped:
    """Return transformers' quantization configuration; `dtype`: dtype of matrix products with NF4
    weights.

    With NF4, the block scales are quantised too, so that a weight takes 0.52 bytes instead of
    0.56."""
    # Hide the warning that bitsandbytes prints in each layer and step, that int8 runs in fp16.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if kind == "int8":
        return transformers.BitsAndBytesConfig(load_in_8bit=True)
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def fix_nf4_layout(model: Untyped) -> None:
    """Keep NF4 weights in the standard layout of bitsandbytes.

    On some CPUs, bitsandbytes would repack the weights and round their scales to bf16 when a layer
    is first used.

    Raises RunError if bitsandbytes computes a layer wrongly on a CPU.
    """
    for name, module in model.named_modules():
        if not is_nf4(module):
            continue
        module.support_avx512bf16_for_cpu = False
        block = module.weight.quant_state.blocksize
        if module.weight.device.type == "cpu" and module.in_features % block:
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.quantization='nf4': layer {name} has {module.in_features} inputs. On a "
                f"CPU, bitsandbytes needs a multiple of {block}.",
                hint="Use recipe.quantization='int8' or 'none', or a worker with a GPU.",
                param="recipe.quantization",
            )


@contextmanager
def adapter_dtype_kept(model: Untyped) -> Iterator[None]:
    """Restore the dtype of trainable weights after the block.

    TRL converts the adapter of a quantised model to bf16. In bf16, rounding would lose updates of
    the adapter."""
    before = {p: p.data for p in model.parameters() if p.requires_grad}
    yield
    for parameter, data in before.items():
        parameter.data = data.to(parameter.device)


def is_nf4(module: Untyped) -> bool:
    """Return True for a bitsandbytes linear layer with NF4 weights; False for subclasses."""
    named = f"{type(module).__module__}.{type(module).__name__}"
    if named != "bitsandbytes.nn.modules.Linear4bit":
        return False
    state = getattr(module.weight, "quant_state", None)
    return state is not None and state.quant_type == "nf4"


def scales(model: Untyped) -> list[torch.Tensor]:
    """Return the tensors that dequantisation needs besides the weights: scales, codes and offsets.

    Scales, codes and offsets are neither parameters nor buffers of the model."""
    tensors = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        for level in (state, getattr(state, "state2", None)):
            tensors += [getattr(level, name, None) for name in ("absmax", "code", "offset")]
        tensors.append(getattr(parameter, "SCB", None))
    # The first forward pass moves a layer's scales to `module.state`.
    tensors += [getattr(getattr(m, "state", None), "SCB", None) for m in model.modules()]
    return [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]


def lora_over_nf4() -> Untyped:
    """Return PEFT's LoRA class for NF4 layers; the class exists only after bitsandbytes is
    imported."""
    return peft.tuners.lora.Linear4bit


def nf4_weight(module: Untyped) -> NF4Weight:
    """Return an NF4 layer's weight in the form that our kernels need, without copying."""
    state = module.weight.quant_state
    scales = None
    if state.nested:
        inner = state.state2
        scales = NF4Scales(code=inner.code, absmax=inner.absmax, offset=state.offset)
    return NF4Weight(
        packed=module.weight.data.view(-1),
        absmax=state.absmax,
        block=state.blocksize,
        shape=tuple(state.shape),
        scales=scales,
    )

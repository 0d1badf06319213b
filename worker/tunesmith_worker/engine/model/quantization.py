"""4-bit and 8-bit base models of bitsandbytes: loading, and access to the weights for our kernels.

transformers imports bitsandbytes if a recipe uses it. This file does not import it and recognises
its modules by class name.
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
    """Return transformers' configuration, with products in `dtype`. NF4's block scales are also
    quantised: 0.52 bytes per weight instead of 0.56."""
    # bitsandbytes warns at each layer and step that int8 products run in fp16, and at import that
    # it could download a kernel.
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
    """Keep bitsandbytes' standard layout of NF4 weights: on some CPUs it would repack them, and
    round their scales to bf16, when a layer is first used for evaluation.

    Raises RunError for layers that bitsandbytes computes wrongly on a CPU.
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
    """Restore the dtype of trainable weights after the block: TRL converts the adapter of a
    quantised model to bf16, whose rounding would lose updates."""
    before = {p: p.data for p in model.parameters() if p.requires_grad}
    yield
    for parameter, data in before.items():
        parameter.data = data.to(parameter.device)


def is_nf4(module: Untyped) -> bool:
    """Return True for bitsandbytes' linear layer with NF4 weights, but not for subclasses."""
    named = f"{type(module).__module__}.{type(module).__name__}"
    if named != "bitsandbytes.nn.modules.Linear4bit":
        return False
    state = getattr(module.weight, "quant_state", None)
    return state is not None and state.quant_type == "nf4"


def scales(model: Untyped) -> list[torch.Tensor]:
    """Return the tensors of quantised weights that are not parameters or buffers: scales of blocks
    or rows, and the quantisation of the scales."""
    tensors = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        for level in (state, getattr(state, "state2", None)):
            tensors += [getattr(level, name, None) for name in ("absmax", "code", "offset")]
        tensors.append(getattr(parameter, "SCB", None))
    # A layer's first forward moves its scales to the module's state.
    tensors += [getattr(getattr(m, "state", None), "SCB", None) for m in model.modules()]
    return [tensor for tensor in tensors if isinstance(tensor, torch.Tensor)]


def lora_over_nf4() -> Untyped:
    """Return PEFT's LoRA class for NF4 layers; it exists only after bitsandbytes is imported."""
    return peft.tuners.lora.Linear4bit


def nf4_weight(module: Untyped) -> NF4Weight:
    """Return the weight of an NF4 layer in the form of our kernels, without copies."""
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

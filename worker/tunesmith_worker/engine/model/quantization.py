"""A frozen base model in 4 or 8 bits, by bitsandbytes: how it is loaded, and read by our kernels.

bitsandbytes is imported by transformers when a recipe asks for it, and never here: its modules are
told by their names.
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
    """transformers' configuration; products are computed in `dtype`. NF4's block scales are
    quantised as well: 0.52 bytes a weight instead of 0.56."""
    # At each layer and step it says that int8 products are taken in fp16, and at its import that
    # it would rather fetch a kernel from the network.
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
    """Hold bitsandbytes to one layout: on some CPUs it would repack NF4 weights for good, and round
    their scales to bf16, when a layer is first used for evaluation.

    Raises RunError for layers that it computes wrongly on a CPU.
    """
    for name, module in model.named_modules():
        if not is_nf4(module):
            continue
        module.support_avx512bf16_for_cpu = False
        block = module.weight.quant_state.blocksize
        if module.weight.device.type == "cpu" and module.in_features % block:
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.quantization='nf4': layer {name} has {module.in_features} inputs, and on "
                f"a CPU bitsandbytes widens rows wrongly that are no multiple of {block}.",
                hint="Use quantization='int8' or 'none', or a worker with a GPU.",
                param="recipe.quantization",
            )


@contextmanager
def adapter_dtype_kept(model: Untyped) -> Iterator[None]:
    """Trainable weights are within, and after, in the dtype they had: TRL makes those over a
    quantised model bf16, whose rounding would swallow their updates."""
    before = {p: p.data for p in model.parameters() if p.requires_grad}
    yield
    for parameter, data in before.items():
        parameter.data = data.to(parameter.device)


def is_nf4(module: Untyped) -> bool:
    """Whether it is bitsandbytes' linear layer with weights in NF4, and nothing derived from it."""
    named = f"{type(module).__module__}.{type(module).__name__}"
    if named != "bitsandbytes.nn.modules.Linear4bit":
        return False
    state = getattr(module.weight, "quant_state", None)
    return state is not None and state.quant_type == "nf4"


def scales(model: Untyped) -> list[torch.Tensor]:
    """What quantised weights need beside their codes, and no parameter or buffer is: scales of
    blocks or rows, and what those are quantised by."""
    found = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        for one in (state, getattr(state, "state2", None)):
            found += [getattr(one, name, None) for name in ("absmax", "code", "offset")]
        found.append(getattr(parameter, "SCB", None))
    # Where a layer's first forward has put them.
    found += [getattr(getattr(one, "state", None), "SCB", None) for one in model.modules()]
    return [one for one in found if isinstance(one, torch.Tensor)]


def lora_over_nf4() -> Untyped:
    """PEFT's layer over such a one. Only there once bitsandbytes has been imported."""
    return peft.tuners.lora.Linear4bit


def nf4_weight(module: Untyped) -> NF4Weight:
    """The weight of a layer for which `is_nf4`, as our kernels read it; nothing is copied."""
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

"""Load saved weights with plain PEFT and transformers, without our kernels."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import peft
import torch
import transformers

from tunesmith_schema.verification import Quantization
from tunesmith_worker.engine.model.quantization import fix_nf4_layout, quantization_config
from tunesmith_worker.engine.model.softcap import keep_softcap
from tunesmith_worker.rundir.errors import is_disk_full, is_out_of_memory

from .compare import ResultMismatch

Untyped = Any  # Any: transformers and peft are not typed

_LOST = "Found missing adapter keys"
"""First words of PEFT's warning about tensors that are missing from the adapter's file."""


@contextmanager
def structure_kept(model: torch.nn.Module) -> Iterator[None]:
    """Within this block, `unwrap` and PEFT may change the model.

    After the block, restore the modules, attributes and trained biases of the model.
    """
    before = [(module, dict(vars(module))) for module in model.modules()]
    members = [
        [(held, dict(held)) for held in values.values() if isinstance(held, dict)]
        for _, values in before
    ]
    tensors = [(tensor, tensor.data, tensor.requires_grad) for tensor in model.parameters()]
    for tensor, data, trained in tensors:
        if trained and tensor.dim() == 1:
            tensor.data = data.clone()  # PEFT loads biases in place
    try:
        yield
    finally:
        for tensor, data, trained in tensors:
            tensor.data = data
            tensor.requires_grad_(trained)
        for (module, values), dictionaries in zip(before, members, strict=True):
            vars(module).clear()
            vars(module).update(values)
            for held, content in dictionaries:
                held.clear()
                held.update(content)


def unwrap(model: peft.PeftModel) -> Untyped:
    """Remove the adapter and all replaced `forward` methods from `model`; return the base model.

    The weights are not copied. The caller must first remove our kernels from the model."""
    for name, module in list(model.named_modules()):
        if isinstance(module, peft.utils.ModulesToSaveWrapper):
            # `unload` would put the trained copy in the base model's place.
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, module.original_module)
    base = model.unload()
    for module in base.modules():
        vars(module).pop("forward", None)  # TRL's fused head, accelerate's autocast
    return base


def load_adapter(base: Untyped, folder: Path) -> Untyped:
    """Load the adapter on `base` with plain PEFT. Raises ResultMismatch if PEFT cannot load the
    adapter, or loads only a part of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = peft.PeftModel.from_pretrained(base, folder)
        except Exception as error:  # a damaged file can raise anything
            raise_unrelated(error)
            raise ResultMismatch(
                f"plain PEFT cannot load the adapter: {type(error).__name__}: {error}"
            ) from error
    lost = [str(warning.message) for warning in caught if _LOST in str(warning.message)]
    if lost:
        raise ResultMismatch(f"plain PEFT: {lost[0]}")
    return model


def load_full(folder: Path, dtype: torch.dtype, device: torch.device) -> Untyped:
    """Load the fully tuned model with plain transformers. Raises ResultMismatch if a weight is
    missing or the model cannot be loaded."""
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            device_map=None if device.type == "cpu" else {"": device},
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # mismatched weights are listed in the error below
            output_loading_info=True,
        )
    except Exception as error:  # a damaged file can raise anything
        raise_unrelated(error)
        raise ResultMismatch(
            f"plain transformers cannot load the model: {type(error).__name__}: {error}"
        ) from error
    missing = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if missing:
        raise ResultMismatch(
            f"the files lack {len(missing)} weights of the model, such as {missing[0]}"
        )
    keep_softcap(model)
    return model


def load_base(
    name: str, dtype: torch.dtype, quantization: Quantization, rows: int, device: torch.device
) -> Untyped:
    """Load a base model from a folder or the Hugging Face Hub, with plain transformers.

    `rows`: minimum number of rows of the embedding; a smaller embedding is enlarged."""
    config = None if quantization == "none" else quantization_config(quantization, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        name,
        dtype=dtype,
        quantization_config=config,
        device_map=None if device.type == "cpu" else {"": device},
        trust_remote_code=False,
        use_safetensors=True,
    )
    fix_nf4_layout(model)
    keep_softcap(model)
    if rows > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return model


def raise_unrelated(error: Exception) -> None:
    """Raise errors that the saved files cannot have caused, such as out of memory."""
    if is_out_of_memory(error) or is_disk_full(error):
        raise error

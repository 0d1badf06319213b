"""Attach LoRA adapters, predict their size, and save them for stock PEFT.

With full tuning, the module saves the whole model. The saved files are only safetensors and JSON.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from pydantic import JsonValue
from safetensors.torch import save_file

from tunesmith_schema import PROJECTIONS, ErrorCode, LoraRecipe, Recipe
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.paths import new_folder
from tunesmith_worker.rundir.plan import Choices

from .adapter_targets import find_targets
from .embeddings import WholeMatrices, keep_in_fp32, whole_matrices
from .probe import record_probe, run_probe

Untyped = Any  # Any: transformers and peft are not typed


def attach_lora(
    model: Untyped, recipe: Recipe, choices: Choices, unused: Sequence[str] = ()
) -> Untyped:
    """Attach a new adapter to the model. LoRA's B matrices start at 0, so the model with the new
    adapter computes the same as the base model.

    `unused`: paths of modules that get no adapter. The modules inside these modules get no adapter
    either."""
    lora = recipe.lora or LoraRecipe()
    targets, excluded = find_targets(model, lora, choices, unused)
    whole = whole_matrices(
        model,
        targets,
        allowed=recipe.allow_full_embeddings,
        adapter_itemsize=adapter_dtype(recipe).itemsize,
    )
    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=lora.lora_alpha,
        lora_dropout=lora.lora_dropout,
        target_modules=_without(targets, whole),
        exclude_modules=excluded,
        modules_to_save=whole and whole.modules_to_save,
        ensure_weight_tying=whole is not None and whole.tied,
        bias=lora.bias,
        use_rslora=lora.use_rslora,
    )
    try:
        with warnings.catch_warnings():
            # peft reads an attribute that transformers has renamed; the warning is harmless.
            warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)
            # PEFT corrects the setting itself for GPT-2's transposed layers.
            warnings.filterwarnings("ignore", "fan_in_fan_out is set to False", UserWarning)
            attached = peft.get_peft_model(model, config)
    except ValueError as error:  # PEFT lists the missing target modules
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            f"recipe.lora does not fit the model: {error}",
            hint="Set recipe.lora.target_modules to 'auto' or to names of the model's layers.",
            param="recipe.lora.target_modules",
        ) from error
    keep_in_fp32(attached)
    return attached


def adapter_dtype(recipe: Recipe) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp32": torch.float32}[recipe.adapter_dtype]


def _without(targets: str | list[str], whole: WholeMatrices | None) -> str | list[str]:
    if isinstance(targets, str) or whole is None:
        return targets
    left = [target for target in targets if target not in whole.targets]
    if not left:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            "recipe.lora.target_modules names only the embedding or the head.",
            hint=f"Add a layer for LoRA, such as {PROJECTIONS[0]}.",
            param="recipe.lora.target_modules",
        )
    return left


@dataclass(frozen=True, kw_only=True)
class SavedAdapter:
    """Size of a saved adapter, and the change of the model's logits when the adapter is rounded."""

    bytes: int
    """Bytes of adapter_model.safetensors."""
    rounding: float
    """Largest change of a logit when the adapter is rounded to the saved dtype, measured on the
    rows of the probe (probe.py)."""

    def summary(self) -> str:
        return (
            f"adapter saved: {self.bytes:,} bytes; rounding to the saved dtype changed the "
            f"model's logits by at most {self.rounding:.1g}"
        )

    def as_data(self) -> dict[str, JsonValue]:
        return {"adapter_bytes": self.bytes, "logit_rounding": self.rounding}


@dataclass(frozen=True, kw_only=True)
class SavedWeights:
    """Weights that were written to a folder."""

    adapter: SavedAdapter | None = None
    """Size and rounding of an adapter; None with full tuning."""
    probe_sha256: str | None
    """SHA-256 of probe.safetensors; None if an earlier version saved the weights."""


def save_trained(
    path: Path,
    model: Untyped,
    tokenizer: Untyped,
    *,
    base_name: str,
    probe_ids: Sequence[int],
    dtype: torch.dtype,
    with_tokenizer: bool,
) -> SavedWeights:
    """Save a probe (probe.py) and the adapter in `dtype`. With full tuning, save a probe and the
    model; `dtype` is not used.

    Stock libraries can load the files. `with_tokenizer`: True if tokens were added, so that the
    adapter needs its own tokenizer."""
    with new_folder(path) as folder:
        if not isinstance(model, peft.PeftModel):
            model.save_pretrained(folder, safe_serialization=True)
            _save_tokenizer(folder, tokenizer)
            probe = record_probe(model, probe_ids, dtype)
            return SavedWeights(probe_sha256=probe.save(folder))
        with _rounded(model, dtype):
            size = _save_lora(folder, model, base_name, dtype)
            probe = record_probe(model, probe_ids, dtype)
        probe_sha256 = probe.save(folder)
        if with_tokenizer:
            _save_tokenizer(folder, tokenizer)
        trained = run_probe(model, probe.input_ids)
        rounding = float((probe.logits - trained).abs().max())
        adapter = SavedAdapter(bytes=size, rounding=rounding)
        return SavedWeights(adapter=adapter, probe_sha256=probe_sha256)


@contextmanager
def _rounded(model: Untyped, dtype: torch.dtype) -> Iterator[None]:
    """Within this block, round the trained parameters to the dtype of the saved adapter file."""
    before = [(p, p.data) for p in model.parameters() if p.requires_grad]
    try:
        for parameter, data in before:
            parameter.data = data.to(dtype).to(data.dtype)
        yield
    finally:
        for parameter, data in before:
            parameter.data = data


def check_saving(folder: Path, model: Untyped, tokenizer: Untyped) -> None:
    """Save everything except the weights to a temporary folder, so that saving errors occur before
    training."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        model.config.save_pretrained(scratch)
        model.generation_config.save_pretrained(scratch)
        _save_tokenizer(Path(scratch), tokenizer)


def _save_tokenizer(folder: Path, tokenizer: Untyped) -> None:
    # Several chat templates go into tokenizer_config.json instead of a folder of files.
    several = isinstance(tokenizer.chat_template, dict)
    tokenizer.save_pretrained(folder, save_jinja_files=not several)


def _save_lora(folder: Path, model: Untyped, base_name: str, dtype: torch.dtype) -> int:
    # PeftModel.save_pretrained would add a model card and ask the hub about embeddings.
    file = folder / "adapter_model.safetensors"
    # safetensors cannot store tensors that share memory, so copy each one.
    tensors = {
        name: value.to("cpu", dtype, copy=True, memory_format=torch.contiguous_format)
        for name, value in adapter_tensors(model).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})
    config = model.peft_config["default"]
    path, mode = config.base_model_name_or_path, config.inference_mode
    # Write the base model's public name instead of a folder on this host.
    config.base_model_name_or_path, config.inference_mode = base_name, True
    config.save_pretrained(folder)
    config.base_model_name_or_path, config.inference_mode = path, mode
    _sort_names(folder / "adapter_config.json")
    return file.stat().st_size


def _sort_names(path: Path) -> None:
    """Sort the lists that PEFT writes in random order, so that equal adapters have equal files."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("target_modules", "modules_to_save", "modules_to_tie"):
        if isinstance(config.get(key), list):
            config[key].sort()
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def adapter_tensors(model: Untyped) -> dict[str, torch.Tensor]:
    """Return the tensors that stock PEFT saves for the adapter, keyed by their names in the
    file."""
    # With the default "auto", PEFT asks the Hugging Face Hub whether the vocabulary was resized.
    state = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    return {name: tensor.detach() for name, tensor in state.items()}


def predict_bytes(model: Untyped, dtype: torch.dtype) -> int:
    """Return the exact size of adapter_model.safetensors; `model` may be on the meta device.

    The file holds 8 bytes for the header's length, a JSON header padded to a multiple of 8 bytes,
    then the tensors (https://huggingface.co/docs/safetensors#format).
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in sorted(adapter_tensors(model).items()):
        begin, end = end, end + tensor.numel() * dtype.itemsize
        kind = {torch.bfloat16: "BF16", torch.float32: "F32"}[dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    return 8 + -(-len(text) // 8) * 8 + end


def resolve_adapter_bytes(model: Untyped, dtype: torch.dtype, choices: Choices) -> int:
    """Record the predicted size of the adapter's file as a choice in plan.json, and return the
    size."""
    numbers = sum(tensor.numel() for tensor in adapter_tensors(model).values())
    return choices.resolve(
        "adapter_bytes",
        "auto",
        predict_bytes(model, dtype),
        f"{numbers:,} parameters of {dtype.itemsize} bytes, plus the file header",
    )

"""Load the base model and its tokenizer; raise an error if the model cannot be trained.

Weights are read only from safetensors. Code from a model's repository never runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tunesmith_schema import ErrorCategory, ErrorCode, RunSpec
from tunesmith_worker.rundir.errors import RunError, is_disk_full, is_out_of_memory
from tunesmith_worker.rundir.plan import Device, LoadPlan

from .config_values import config_size
from .quantization import fix_nf4_layout, quantization_config
from .softcap import keep_softcap

NVIDIA_CONTROL = Path("/dev/nvidiactl")
"""Device file that exists on every host with an NVIDIA driver."""

Untyped = Any  # Any: transformers' types are too slow for mypy


@dataclass(frozen=True, kw_only=True)
class Base:
    """The base model with its tokenizer."""

    model: Untyped
    tokenizer: Untyped
    context: int | None
    """Maximum number of token positions; None if the configuration does not set it."""
    unused: tuple[str, ...] = ()
    """Paths of modules (LoRA) or parameters (full tuning) that do not affect the loss on text.
    These modules get no adapter, and these parameters are not trained."""

    @property
    def architecture(self) -> str:
        """Name of the model's class in transformers."""
        return type(self.model).__name__

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().num_embeddings)


def find_device() -> Device:
    """Return the training device. Raises RunError if the GPU's driver is too old."""
    if not torch.cuda.is_available():
        if torch.version.cuda and NVIDIA_CONTROL.exists():
            _refuse_unusable_driver()
        return Device(name="cpu", is_gpu=False, has_bf16=False)
    return Device(
        name=torch.cuda.get_device_name(),
        is_gpu=True,
        has_bf16=torch.cuda.is_bf16_supported(including_emulation=False),
    )


def _refuse_unusable_driver() -> None:
    """Raise RunError if the GPU's driver is unusable, to avoid training on the CPU by mistake.

    The function raises no error for a GPU that CUDA_VISIBLE_DEVICES hides."""
    try:
        torch.cuda.init()
    except RuntimeError as error:
        if "driver" in str(error).lower():
            raise RunError(
                ErrorCode.GPU_NOT_USABLE,
                f"The NVIDIA driver does not support torch's CUDA {torch.version.cuda}: {error}",
                category=ErrorCategory.INFRASTRUCTURE,
                hint="Update the driver (CUDA 13 needs 580 or newer), or train on the CPU with "
                "CUDA_VISIBLE_DEVICES='' in the worker's environment.",
            ) from error


def load_base(spec: RunSpec, plan: LoadPlan) -> Base:
    _check_folder(spec)
    try:
        config = transformers.AutoConfig.from_pretrained(spec.model_path, trust_remote_code=False)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            spec.model_path, trust_remote_code=False
        )
        model = _model(spec, config, weights_dtype(plan))
    except Exception as error:  # a broken model can raise anything
        if isinstance(error, RunError) or is_out_of_memory(error) or is_disk_full(error):
            raise
        raise _unusable(spec, error) from error
    if not tokenizer.is_fast:
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"Model '{spec.model}' has no fast tokenizer (tokenizer.json), which training needs.",
            hint="Convert the tokenizer: AutoTokenizer.from_pretrained(...).save_pretrained(...).",
        )
    if tokenizer.pad_token is None:
        # Any token works as padding, because the mask uses positions and not token ids.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
    context = config_size(config.get_text_config(), "max_position_embeddings")
    keep_softcap(model)
    _fix_generation_config(model)
    return Base(model=model, tokenizer=tokenizer, context=context)


def weights_dtype(plan: LoadPlan) -> torch.dtype:
    return torch.float32 if plan.precision == "fp32" else torch.bfloat16


def _fix_generation_config(model: Untyped) -> None:
    """Set `do_sample=True` if the generation configuration is invalid without it.

    Llama 2, for example, sets a temperature but not `do_sample`. transformers loads such a
    generation configuration with a warning, but refuses to save it."""
    try:
        model.generation_config.validate(strict=True)
    except ValueError:
        model.generation_config.do_sample = True


def _model(spec: RunSpec, config: Untyped, dtype: torch.dtype) -> Untyped:
    if spec.recipe.from_scratch:
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=False
        )
    kind = spec.recipe.quantization
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        spec.model_path,
        config=config,
        quantization_config=None if kind == "none" else quantization_config(kind, dtype),
        dtype=dtype,
        trust_remote_code=False,
        use_safetensors=True,
        ignore_mismatched_sizes=True,  # mismatched weights are listed in the error below
        output_loading_info=True,
    )
    missing = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if missing:
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"Model '{spec.model}' lacks {len(missing)} weights, such as {missing[0]}. Missing "
            "weights would be random.",
            hint="Download the model again, or use a model whose weights match its config.json.",
        )
    fix_nf4_layout(model)
    return model


def _check_folder(spec: RunSpec) -> None:
    folder = Path(spec.model_path)
    if not folder.is_dir():  # a Hugging Face id: rundir/spec.py refuses missing paths
        return
    if not (folder / "config.json").exists():
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"Model '{spec.model}': {folder} has no config.json.",
            hint="Save the model and its tokenizer into the folder with save_pretrained.",
            param="model",
        )
    if spec.recipe.from_scratch or any(folder.glob("*.safetensors")):
        return
    pickled = sorted(p.name for p in (*folder.glob("*.bin"), *folder.glob("*.pt*")))
    if pickled:
        raise RunError(
            ErrorCode.MODEL_NOT_USABLE,
            f"Model '{spec.model}' has only {', '.join(pickled)}: weights must be safetensors, "
            "because pickled files can run code.",
            hint="Convert the model on a machine you trust: "
            "AutoModelForCausalLM.from_pretrained(...).save_pretrained(...).",
            param="model",
        )
    raise RunError(
        ErrorCode.MODEL_NOT_USABLE,
        f"Model '{spec.model}' has no weights: {folder} holds no *.safetensors.",
        hint="Download the model again; or train it from random weights with "
        "recipe.tuning='full' and recipe.from_scratch=true.",
        param="model",
    )


def _unusable(spec: RunSpec, error: Exception) -> RunError:
    text = str(error)
    if not isinstance(error, OSError | ValueError):
        text = f"{type(error).__name__}: {text}"  # a KeyError's message is only the key
    if "is not a local folder and is not a valid model identifier" in text:
        return RunError(
            ErrorCode.MODEL_NOT_FOUND,
            f"Model '{spec.model}' is not a folder on this worker and not a Hugging Face id.",
            hint="Check the name; a gated model needs HF_TOKEN in the worker's environment.",
            param="model",
        )
    if "trust_remote_code" in text:
        hint = "Code from a model's repository never runs: use a transformers architecture."
    elif Path(spec.model_path).is_dir():
        hint = "Check that the folder has config.json, safetensors weights and a tokenizer."
    else:
        hint = (
            "Check that the worker's host can reach huggingface.co, or put the model into a folder "
            "below TUNESMITH_MODEL_DIRS. A gated model needs HF_TOKEN in the worker's environment."
        )
    return RunError(
        ErrorCode.MODEL_NOT_USABLE,
        f"Model '{spec.model}' cannot be loaded: {text}",
        hint=hint,
        param="model",
    )

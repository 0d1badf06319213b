"""Choose the layers that LoRA adapts.

With `"auto"`, LoRA adapts the seven projections of a Llama-like block, and all other linear layers
of the decoder layers, such as fused projections. Routers of experts are not adapted. A model
without any of the seven projections gets `"all-linear"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from tunesmith_schema import PROJECTIONS, ErrorCode, LoraRecipe
from tunesmith_worker.rundir.errors import RunError
from tunesmith_worker.rundir.plan import Choices

from .quantization import is_nf4

Untyped = Any  # Any: transformers is not typed

_IN_LAYER = re.compile(r"\.\d+\.")
"""Pattern that occurs in a module's path if the module is inside a numbered layer."""
_OTHER_CLASS = re.compile(r"Router|TopKGating|DynamicShortConvolution")
"""Pattern in class names of routers and dynamic convolutions; their linear layers get no
adapter."""
_ROUTER = re.compile(r"gate|shared_expert_gate|wg|.*router.*")
"""Name of a linear layer that chooses experts, or computes how much each expert counts."""


def find_targets(
    model: Untyped, lora: LoraRecipe, choices: Choices, unused: Sequence[str]
) -> tuple[str | list[str], str | None]:
    """Return PEFT's `target_modules` (names or "all-linear") and `exclude_modules`.

    `exclude_modules` is a regular expression for modules that a target matches, but that get no
    adapter; None if no module is excluded.

    `unused`: paths of modules that get no adapter. The modules inside these modules get no adapter
    either. Raises RunError if the recipe names a layer that the model does not have."""
    targets = _targets(model, lora, choices, unused)
    excluded = list(unused)
    if targets == "all-linear":
        excluded += _read_directly(model)
    elif lora.target_modules == "auto":
        added, wanted = set(targets) - set(PROJECTIONS), set(_wanted(model))
        alike = [path for path, _ in model.named_modules() if _name(path) in added]
        excluded += [path for path in alike if path not in wanted]
    return targets, inside(excluded) if excluded else None


def inside(paths: Sequence[str]) -> str:
    """Return a regular expression for the modules `paths` and all modules inside them."""
    return rf"({'|'.join(map(re.escape, paths))})(\..*)?"


def _targets(
    model: Untyped, lora: LoraRecipe, choices: Choices, unused: Sequence[str]
) -> str | list[str]:
    is_unused = re.compile(inside(unused)).fullmatch if unused else lambda _: None
    names = {
        _name(path)
        for path, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D) and not is_unused(path)
    }
    projections = [name for name in PROJECTIONS if name in names]
    requested = lora.target_modules
    if isinstance(requested, list):
        absent = [target for target in requested if not _has(model, target)]
        if absent:  # PEFT accepts a list of targets if one target exists
            raise RunError(
                ErrorCode.RECIPE_INVALID,
                f"recipe.lora.target_modules: the model has no layer {absent[0]!r}.",
                hint=f"Use {', '.join(projections) or 'all-linear'}.",
                param="recipe.lora.target_modules",
            )
    others = {_name(path) for path in _wanted(model) if not is_unused(path)} - set(PROJECTIONS)
    found: str | list[str] = [*projections, *sorted(others)]
    why = "the model's projections"
    if not projections:
        found, why = "all-linear", "the model has none of the usual projections"
    elif others:
        why += ", and the other linear layers of its decoder layers"
    return choices.resolve("lora.target_modules", requested, found, why)


def _wanted(model: Untyped) -> Iterator[str]:
    """Yield the paths of the linear layers in decoder layers that "auto" adapts. Layers of routers
    and dynamic convolutions are skipped. Also skipped are layers whose weights the model reads
    without calling the layer, and layers whose name is only a number (in a torch.nn.Sequential)."""
    others = [path for path, m in model.named_modules() if _OTHER_CLASS.search(type(m).__name__)]
    in_other = re.compile(inside(others)).fullmatch if others else lambda _: None
    directly = set(_read_directly(model))
    for path, module in model.named_modules():
        name = _name(path)
        if (
            _IN_LAYER.search(path)
            and _is_linear(module)
            and not (in_other(path) or _ROUTER.fullmatch(name))
            and path not in directly
            and not name.isdecimal()
        ):
            yield path


def _is_linear(module: torch.nn.Module) -> bool:
    """Return True if the module computes `x W' + b`. A subclass of torch.nn.Linear may have another
    forward."""
    plain = getattr(type(module), "forward", None) is torch.nn.Linear.forward
    return plain or is_nf4(module) or isinstance(module, Conv1D)


def _read_directly(model: Untyped) -> list[str]:
    """Return the paths of layers whose weights the model reads without calling the layer.

    If the model does not call a layer, an adapter on this layer has no effect."""
    return [
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name in _names_read_by(module)
        if hasattr(module, name)
    ]


def _names_read_by(module: torch.nn.Module) -> tuple[str, ...]:
    if hasattr(module, "A_log") and hasattr(module, "D"):  # a state-space scan, such as Mamba
        return "conv1d", "x_proj", "dt_proj", "out_proj"
    if hasattr(module, "correction_coefs"):  # AltUp clamps the weights in training
        return "prediction_coefs", "correction_coefs"
    return ()


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _has(model: Untyped, target: str) -> bool:
    return any(path == target or path.endswith(f".{target}") for path, _ in model.named_modules())

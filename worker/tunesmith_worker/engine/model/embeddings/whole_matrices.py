"""Train the whole embedding and head in fp32, if recipe.allow_full_embeddings is set.

An adapter with whole matrices is very large. For a few tokens, token_rows.py trains only single
rows.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import embedding, linear

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir.errors import RunError

from .matrices import Matrices, Matrix, matches

Untyped = Any  # Any: transformers and peft are not typed

_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class WholeMatrices:
    """The fully trained matrices: embedding, head or both."""

    matrices: tuple[Matrix, ...]
    """Trained matrices; for tied matrices only the embedding."""
    targets: frozenset[str]
    """Names of the matrices as written in the recipe."""
    parameters: int
    """Number of trained parameters; tied matrices count once."""
    saved_parameters: int
    """Number of parameters in the adapter's file; PEFT saves a tied weight under both names."""
    tied: bool

    @property
    def modules_to_save(self) -> list[str]:
        """Value of PEFT's setting `modules_to_save`. A tied head is not listed, because PEFT adds
        the head to its own list."""
        return [matrix.name for matrix in self.matrices]

    def price(self, adapter_itemsize: int) -> str:
        """Describe the matrices' size; `adapter_itemsize`: bytes per parameter in the adapter's
        file."""
        shapes = " and ".join(
            f"{m.name} {m.weight.shape[0]:,} x {m.weight.shape[1]:,}" for m in self.matrices
        )
        disk, fp32 = self.saved_parameters * adapter_itemsize / _GB, self.parameters * 4 / _GB
        return (
            f"{shapes}{' (tied: one weight, saved under both names)' if self.tied else ''}: "
            f"{_gb(disk)} more in the adapter on disk and {_gb(4 * fp32)} in memory "
            f"(weights {_gb(fp32)}, gradient {_gb(fp32)}, Adam {_gb(2 * fp32)})"
        )


def _gb(gigabytes: float) -> str:
    return f"{gigabytes:.1f} GB" if gigabytes >= 0.95 else f"{gigabytes * 1e3:.3g} MB"


def whole_matrices(
    model: Untyped, targets: str | Sequence[str], *, allowed: bool, adapter_itemsize: int
) -> WholeMatrices | None:
    """Return the matrices that `targets` names: the embedding, the head or both; None if it names
    neither.

    The function uses only shapes, so `model` may be on the meta device. If `allowed` is False,
    raises a RunError that states the size.
    """
    if isinstance(targets, str):
        return None  # "all-linear" excludes the head
    matrices = Matrices.of(model)
    names = {target for target in targets for m in matrices.named if matches(m, target)}
    named = [m for m in matrices.named if any(matches(m, target) for target in names)]
    if not named:
        return None
    if matrices.tied:
        named = [matrices.embedding]
    parameters = sum(matrix.weight.numel() for matrix in named)
    whole = WholeMatrices(
        matrices=tuple(named),
        targets=frozenset(names),
        parameters=parameters,
        saved_parameters=parameters * (2 if matrices.tied else 1),
        tied=matrices.tied,
    )
    if not allowed:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            "recipe.lora.target_modules names matrices that would train as a whole: "
            f"{whole.price(adapter_itemsize)}.",
            hint="Remove these names: without them, the run trains only the rows of the tokens in "
            "recipe.add_tokens and of tokens that the base model never learned. To train the whole "
            "matrices, set recipe.allow_full_embeddings=true.",
            param="recipe.allow_full_embeddings",
        )
    return whole


def keep_in_fp32(model: Untyped) -> None:
    """Train the weights of PEFT's `modules_to_save` in fp32, but compute in the base model's dtype.

    Stock PEFT also computes in the base model's dtype when it loads the saved adapter."""
    matrices = Matrices.of(model.get_base_model())
    for matrix in matrices.named:
        copies = getattr(matrix.module, "modules_to_save", None)
        if copies is None:
            continue
        module, dtype = copies["default"], matrix.module.original_module.weight.dtype
        if dtype == torch.float32:
            continue
        for parameter in module.parameters():
            parameter.data = parameter.data.float()
        compute = _look_up if isinstance(module, torch.nn.Embedding) else _project
        module.forward = types.MethodType(compute(dtype), module)


def _look_up(dtype: torch.dtype) -> Untyped:
    def forward(module: Untyped, ids: torch.Tensor) -> torch.Tensor:
        rows = embedding(ids, module.weight, module.padding_idx).to(dtype)
        scale = getattr(module, "embed_scale", None)  # Gemma 3
        return rows if scale is None else rows * torch.as_tensor(scale).to(rows)

    return forward


def _project(dtype: torch.dtype) -> Untyped:
    def forward(module: Untyped, hidden: torch.Tensor) -> torch.Tensor:
        bias = None if module.bias is None else module.bias.to(dtype)
        return linear(hidden.to(dtype), module.weight.to(dtype), bias)

    return forward

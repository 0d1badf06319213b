"""The embedding and the head as whole matrices: by consent, with their price, in fp32.

An adapter that holds them is about as large as the model they come from; a few tokens never need it
(token_rows.py).
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
    """What of a model's embedding and head trains as a whole."""

    matrices: tuple[Matrix, ...]
    """Those that train; of tied ones the embedding, which the head follows."""
    targets: frozenset[str]
    """The user's names for them."""
    numbers: int
    """Of the weights that train; a tied one counts once."""
    saved_numbers: int
    """In the adapter's file: PEFT wants a tied weight there under both names."""
    tied: bool

    @property
    def modules_to_save(self) -> list[str]:
        """For PEFT, which finds the head that is tied to an embedding by itself."""
        return [one.name for one in self.matrices]

    def price(self, adapter_itemsize: int) -> str:
        """Bytes on disk and in memory; `adapter_itemsize`: of one number in the adapter's file."""
        shapes = " and ".join(
            f"{one.name} {one.weight.shape[0]:,} x {one.weight.shape[1]:,}" for one in self.matrices
        )
        disk, fp32 = self.saved_numbers * adapter_itemsize / _GB, self.numbers * 4 / _GB
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
    """What `targets` names of the embedding and the head; None if nothing.

    Needs the model's shapes only, so that it may lie on the meta device. Raises RunError unless
    `allowed`, with what it would cost.
    """
    if isinstance(targets, str):
        return None  # "all-linear" leaves the head out
    matrices = Matrices.of(model)
    names = {target for target in targets for one in matrices.named if matches(one, target)}
    named = [one for one in matrices.named if any(matches(one, target) for target in names)]
    if not named:
        return None
    if matrices.tied:
        named = [matrices.embedding]
    numbers = sum(one.weight.numel() for one in named)
    whole = WholeMatrices(
        matrices=tuple(named),
        targets=frozenset(names),
        numbers=numbers,
        saved_numbers=numbers * (2 if matrices.tied else 1),
        tied=matrices.tied,
    )
    if not allowed:
        raise RunError(
            ErrorCode.RECIPE_INVALID,
            "recipe.lora.target_modules names matrices that would train as a whole: "
            f"{whole.price(adapter_itemsize)}.",
            hint="Leave them out: tokens that the base model never learned and recipe.add_tokens "
            "train as single rows without them. To train the whole matrices all the same, set "
            "recipe.allow_full_embeddings=true.",
            param="recipe.allow_full_embeddings",
        )
    return whole


def keep_in_fp32(model: Untyped) -> None:
    """`model`: PEFT's, with `modules_to_save`. Their weights train in fp32 and compute in the base
    model's dtype, in which stock PEFT will load them."""
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
        found = embedding(ids, module.weight, module.padding_idx).to(dtype)
        scale = getattr(module, "embed_scale", None)  # Gemma 3
        return found if scale is None else found * torch.as_tensor(scale).to(found)

    return forward


def _project(dtype: torch.dtype) -> Untyped:
    def forward(module: Untyped, hidden: torch.Tensor) -> torch.Tensor:
        bias = None if module.bias is None else module.bias.to(dtype)
        return linear(hidden.to(dtype), module.weight.to(dtype), bias)

    return forward

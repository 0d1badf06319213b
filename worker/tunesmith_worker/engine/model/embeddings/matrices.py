"""Which modules of a causal language model are its embedding and its head. Knows no PEFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """One [V, H] weight."""

    name: str
    """Its module's path in the model, e.g. `model.embed_tokens`."""
    module: Untyped

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self.module.weight
        return weight


@dataclass(frozen=True, kw_only=True)
class Matrices:
    embedding: Matrix
    head: Matrix | None
    """The same weight as the embedding's where they are tied; None for a model without one."""

    @classmethod
    def of(cls, model: Untyped) -> Matrices:
        """`model`: a causal language model of transformers, PEFT's layers in it or not."""
        embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
        names = {id(module): name for name, module in model.named_modules()}
        return cls(
            embedding=Matrix(name=names[id(embedding)], module=embedding),
            head=None if head is None else Matrix(name=names[id(head)], module=head),
        )

    @property
    def tied(self) -> bool:
        return self.head is not None and self.head.weight is self.embedding.weight

    @property
    def distinct(self) -> list[Matrix]:
        """Each weight once."""
        return [self.embedding] if self.head is None or self.tied else [self.embedding, self.head]

    @property
    def named(self) -> list[Matrix]:
        return [one for one in (self.embedding, self.head) if one is not None]


def matches(matrix: Matrix, target: str) -> bool:
    """Whether PEFT would take `target` for this module."""
    return matrix.name == target or matrix.name.endswith(f".{target}")


def mean_row(weight: torch.Tensor, rows: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """The mean of some rows of a [V, H] weight: [H], summed in fp64."""
    index = torch.as_tensor(rows, device=weight.device)
    total = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)
    for part in index.split(8192):
        total += weight[part].sum(0, dtype=torch.float64)
    return total / len(index)

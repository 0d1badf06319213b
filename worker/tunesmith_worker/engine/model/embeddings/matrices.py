"""The embedding and the head of a causal language model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

Untyped = Any  # Any: transformers is not typed


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A [V, H] weight and its module."""

    name: str
    """Path of the module in the model, such as `model.embed_tokens`."""
    module: Untyped

    @property
    def weight(self) -> torch.Tensor:
        weight: torch.Tensor = self.module.weight
        return weight


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """The embedding and the head of one model."""

    embedding: Matrix
    head: Matrix | None
    """The head; None for a model without a head. A tied head shares the embedding's weight."""

    @classmethod
    def of(cls, model: Untyped) -> Matrices:
        """Find the embedding and the head of a transformers causal language model, with or without
        PEFT."""
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
        """The embedding, and the head if the head has a weight of its own."""
        return [self.embedding] if self.head is None or self.tied else [self.embedding, self.head]

    @property
    def named(self) -> list[Matrix]:
        """The embedding, and the head if the model has a head."""
        return [self.embedding] if self.head is None else [self.embedding, self.head]


def matches(matrix: Matrix, target: str) -> bool:
    """Return True if PEFT matches `target` to this module."""
    return matrix.name == target or matrix.name.endswith(f".{target}")


def mean_row(weight: torch.Tensor, rows: Sequence[int] | torch.Tensor) -> torch.Tensor:
    """Return the mean [H] of the given rows of a [V, H] weight, summed in fp64."""
    index = torch.as_tensor(rows, device=weight.device)
    total = torch.zeros(weight.shape[1], dtype=torch.float64, device=weight.device)
    for part in index.split(8192):
        total += weight[part].sum(0, dtype=torch.float64)
    return total / len(index)

"""Rows of the embedding and of the head that an adapter trains (PEFT's trainable tokens)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TrainedRows:
    ids: torch.Tensor
    """Ids of the trained tokens, [k]."""
    embedding: torch.Tensor | None
    """Trained rows [k, hidden], which replace rows of the base model; None if the embedding is not
    trained."""
    head: torch.Tensor | None
    multiplier: float = 1.0
    """Factor by which the model multiplies embeddings."""


class TokenRows:
    """Trained rows of each adapter."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows: dict[str, TrainedRows] = {}
        self._step: dict[str, torch.Tensor] = {}
        """Positions of each adapter's tokens in the current step.

        Only adapters with trained rows are included."""

    def add(self, adapter: str, rows: TrainedRows) -> None:
        self._rows[adapter] = rows

    def remove(self, adapter: str) -> None:
        self._rows.pop(adapter, None)

    def start_step(self, adapters: Sequence[str | None]) -> None:
        self._step = self._index(adapters)

    def _index(self, adapters: Sequence[str | None]) -> dict[str, torch.Tensor]:
        if not self._rows:
            return {}
        used = {name for name in adapters if name is not None and name in self._rows}
        return {
            name: torch.tensor(
                [i for i, one in enumerate(adapters) if one == name], device=self._device
            )
            for name in sorted(used)
        }

    def embed(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Replace the embeddings of trained tokens by the adapters' trained rows.

        `ids`: token ids [T]. `x`: their embeddings [T, hidden]."""
        for name, tokens in self._step.items():
            rows = self._rows[name]
            if rows.embedding is None:
                continue
            match = ids[tokens][:, None] == rows.ids[None]  # [t, k]
            at, which = match.nonzero(as_tuple=True)
            if len(at):
                values = rows.embedding[which] * rows.multiplier
                x = x.index_copy(0, tokens[at], values.to(x.dtype))
        return x

    def head(
        self, x: torch.Tensor, logits: torch.Tensor, adapters: Sequence[str | None]
    ) -> torch.Tensor:
        """Replace the logits of trained tokens by logits from the adapters' trained rows of the
        head.

        `x`: normalised hidden states [N, hidden]. `logits`: [N, V]."""
        for name, tokens in self._index(adapters).items():
            rows = self._rows[name]
            if rows.head is not None:
                own = x[tokens] @ rows.head.to(x.dtype).t()
                logits[tokens[:, None], rows.ids[None]] = own.to(logits.dtype)
        return logits

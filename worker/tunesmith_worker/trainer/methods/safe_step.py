"""What every trainer of ours has, whatever it trains by: an optimiser that takes no NaN, a rate of
its own for the embedding, and checkpoints that are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers

from tunesmith_worker.engine.model.embeddings import embedding_parameters, give_rate

from .nan_guard import NanGuard

Untyped = Any  # Any: transformers and TRL are not typed


class Guarded(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Comes before a trainer in the list of bases."""

    guard: NanGuard

    def guarded(
        self, guard: NanGuard, *, save: Callable[[int], None], embedding_rate: float | None
    ) -> None:
        """Last in the constructor. `save` writes what is due at the given step; `embedding_rate`:
        peak rate of the embedding, the head and token rows, None: as all others."""
        self.guard, self._save, self._embedding_rate = guard, save, embedding_rate

    def create_optimizer(self, model: Untyped = None) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self._embedding_rate is not None:
            give_rate(optimizer, embedding_parameters(self.model), self._embedding_rate)
        self.guard.watch(optimizer)
        return optimizer

    def _get_grad_norm(self, model: Untyped, grad_norm: Untyped = None) -> Untyped:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.guard.judge(norm)
        return norm

    def before_logging(self, logs: dict[str, float]) -> None:
        """First in `log`. Raises RunError for a step whose gradient was not finite."""
        self.guard.check()
        if self._embedding_rate is not None and "learning_rate" in logs:
            share = self._embedding_rate / self.args.learning_rate  # the schedule scales both
            logs["embedding_learning_rate"] = logs["learning_rate"] * share

    def floating_point_ops(self, inputs: Untyped) -> int:
        return 0  # the Trainer's estimate counts parameters, frozen or not: it is shown nowhere

    def _save_checkpoint(self, model: Untyped, trial: Untyped) -> None:
        # The Trainer's own would pickle the optimiser and write a model card.
        self.guard.check()
        self._save(self.state.global_step)

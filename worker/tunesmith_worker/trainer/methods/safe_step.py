"""What every trainer of ours has, whatever it trains by: an optimiser that takes no NaN, a rate of
its own for the embedding, and checkpoints that are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tunesmith_worker.engine.model.embeddings import embedding_parameters, set_learning_rate
from tunesmith_worker.trainer.checkpoints.state import Saved

from .nan_guard import NanGuard

Untyped = Any  # Any: transformers and TRL are not typed


class SafeStep(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Comes before a trainer in the list of bases."""

    guard: NanGuard

    def init_safe_step(
        self, guard: NanGuard, *, save: Callable[[int], None], embedding_rate: float | None
    ) -> None:
        """Last in the constructor. `save` writes what is due at the given step; `embedding_rate`:
        peak rate of the embedding, the head and token rows, None: as all others."""
        self.guard, self._save, self._embedding_rate = guard, save, embedding_rate

    def create_optimizer(self, model: Untyped = None) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self._embedding_rate is not None:
            set_learning_rate(optimizer, embedding_parameters(self.model), self._embedding_rate)
        self.guard.watch(optimizer)
        return optimizer

    def _get_grad_norm(self, model: Untyped, grad_norm: Untyped = None) -> Untyped:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.guard.check_norm(norm)
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


class Resumable(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Comes before a trainer in the list of bases."""

    steps_before = 0
    """Optimiser steps that this process did not do."""
    tokens_before = 0
    """Tokens that carried loss in them."""
    _point: Path | None = None
    _saved: Saved | None = None
    _forked = False

    def resume_from(self, folder: Path, *, forked: bool) -> Saved:
        """A verified resume point, when `train` is called. `forked`: by this run's schedule."""
        self._point, self._saved, self._forked = folder, Saved(folder), forked
        return self._saved

    def train(self, **given: Untyped) -> Untyped:
        if self._point is not None:
            given["resume_from_checkpoint"] = str(self._point)
        return super().train(**given)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Untyped = None) -> None:
        assert self._saved is not None, "resume_from comes first"
        self._saved.put_weights(self.model)

    def _init_training_state(self, max_steps: int, *given: Untyped) -> tuple[int, int]:
        found: tuple[int, int] = super()._init_training_state(max_steps, *given)
        if self._saved is not None:
            self.state.compute_steps(self.args, max_steps)  # a fork's may differ
            self.steps_before = self.state.global_step
            self._saved.put_counters(self)
            self.tokens_before = int(self.trained_tokens)
        return found

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self._saved is not None:
            self._saved.put_optimizer(self, forked=self._forked)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """The last thing before the first step: what the Trainer has reset since is put back."""
        assert self._saved is not None, "resume_from comes first"
        self._saved.put_random_numbers()
        since_logged, loss = self._loss_so_far
        self._globalstep_last_logged -= since_logged
        self._tr_loss.copy_(loss)

    _loss_so_far: tuple[int, torch.Tensor]

    def state_dict(self) -> tuple[dict[str, Untyped], dict[str, torch.Tensor]]:
        """What has been counted and not been told yet: JSON and tensors."""
        plain = {"since_logged": self.state.global_step - self._globalstep_last_logged}
        return plain, {"loss_since_logged": self._tr_loss}

    def load_state_dict(self, plain: dict[str, Untyped], tensors: dict[str, torch.Tensor]) -> None:
        self._loss_so_far = plain["since_logged"], tensors["loss_since_logged"]

"""Mixins for all trainers: NaN guard, embedding learning rate, our checkpoints and exact resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from tunesmith_worker.engine.model.embeddings import embedding_parameters, set_learning_rate
from tunesmith_worker.trainer.checkpoints.state import SavedState

from .nan_guard import NanGuard

Untyped = Any  # Any: transformers and TRL are not typed


class SafeStep(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Mixin that must come before the TRL trainer in the list of base classes."""

    guard: NanGuard

    def init_safe_step(
        self, guard: NanGuard, *, save: Callable[[int], None], embedding_rate: float | None
    ) -> None:
        """Set up the mixin; call this method last in the constructor.

        `save`: function to call after each step; it writes the checkpoints that are due.
        `embedding_rate`: peak learning rate of the trained parameters in embedding and head; None
        means that all parameters have the same learning rate.
        """
        self.guard, self._save, self.embedding_rate = guard, save, embedding_rate

    def create_optimizer(self, model: Untyped = None) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if self.embedding_rate is not None:
            set_learning_rate(optimizer, embedding_parameters(self.model), self.embedding_rate)
        self.guard.watch(optimizer)
        return optimizer

    def _get_grad_norm(self, model: Untyped, grad_norm: Untyped = None) -> Untyped:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)
        self.guard.check_norm(norm)
        return norm

    def before_logging(self, logs: dict[str, float]) -> None:
        """Call this method first in `log`. Raises RunError for a step whose gradient was not
        finite."""
        self.guard.check()
        if self.embedding_rate is not None and "learning_rate" in logs:
            share = self.embedding_rate / self.args.learning_rate  # the schedule scales both rates
            logs["embedding_learning_rate"] = logs["learning_rate"] * share

    def floating_point_ops(self, inputs: Untyped) -> int:
        return 0  # skip the Trainer's estimate, which is never shown

    def _save_checkpoint(self, model: Untyped, trial: Untyped) -> None:
        # The Trainer's method would pickle the optimiser and write a model card.
        self.guard.check()
        self._save(self.state.global_step)


class Resumable(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Mixin that resumes a transformers Trainer from a resume point instead of pickle files.

    The Trainer calls this class's methods to load weights, optimiser and random state. The Trainer
    skips the rows of the epoch that are already trained."""

    steps_before = 0
    """Number of optimiser steps completed by earlier attempts."""
    tokens_before = 0
    """Number of tokens with loss in the steps of earlier attempts."""
    _point: Path | None = None
    _saved: SavedState | None = None
    _forked = False

    def resume_from(self, folder: Path, *, forked: bool) -> SavedState:
        """Make `train` start from a verified resume point. `forked`: True if the run is a fork of
        another run; a fork has its own learning rate schedule."""
        self._point, self._saved, self._forked = folder, SavedState(folder), forked
        return self._saved

    def train(self, **arguments: Untyped) -> Untyped:
        if self._point is not None:
            arguments["resume_from_checkpoint"] = str(self._point)
        return super().train(**arguments)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Untyped = None) -> None:
        assert self._saved is not None, "call resume_from first"
        self._saved.load_weights(self.model)

    def _init_training_state(self, max_steps: int, *arguments: Untyped) -> tuple[int, int]:
        progress: tuple[int, int] = super()._init_training_state(max_steps, *arguments)
        if self._saved is not None:
            self.state.compute_steps(self.args, max_steps)  # a fork may log at other step intervals
            self.steps_before = self.state.global_step
            self._saved.load_counters(self)
            self.tokens_before = int(self.trained_tokens)
        return progress

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self._saved is not None:
            self._saved.load_optimizer(self, forked=self._forked)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random state, and the step count and loss sum since the last log. The Trainer
        calls this method just before the first step."""
        assert self._saved is not None, "call resume_from first"
        self._saved.load_random_numbers()
        since_logged, loss = self._loss_so_far
        self._globalstep_last_logged -= since_logged
        self._tr_loss.copy_(loss)

    _loss_so_far: tuple[int, torch.Tensor]

    def state_dict(self) -> tuple[dict[str, Untyped], dict[str, torch.Tensor]]:
        """Return the step count since the last log as JSON, and the loss sum since then as a
        tensor."""
        plain = {"since_logged": self.state.global_step - self._globalstep_last_logged}
        return plain, {"loss_since_logged": self._tr_loss}

    def load_state_dict(self, plain: dict[str, Untyped], tensors: dict[str, torch.Tensor]) -> None:
        self._loss_so_far = plain["since_logged"], tensors["loss_since_logged"]

"""A transformers Trainer that goes on from a resume point, in place of its own pickles.

The Trainer asks for weights, optimiser and random numbers at the right moments of its own; here is
what it gets then. It passes over the rows of the epoch that are done by their numbers alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tunesmith_worker.trainer.checkpoints.state import Saved

Untyped = Any  # Any: transformers and TRL are not typed


class Resuming(transformers.Trainer):  # type: ignore[misc]  # transformers is untyped
    """Comes before a trainer in the list of bases."""

    steps_before = 0
    """Optimiser steps that this process did not do."""
    tokens_before = 0
    """Tokens that carried loss in them."""
    _point: Path | None = None
    _saved: Saved | None = None
    _forked = False

    def go_on_from(self, folder: Path, *, forked: bool) -> Saved:
        """A verified resume point, when `train` is called. `forked`: by this run's schedule."""
        self._point, self._saved, self._forked = folder, Saved(folder), forked
        return self._saved

    def train(self, **given: Untyped) -> Untyped:
        if self._point is not None:
            given["resume_from_checkpoint"] = str(self._point)
        return super().train(**given)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Untyped = None) -> None:
        assert self._saved is not None, "go_on_from comes first"
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
        assert self._saved is not None, "go_on_from comes first"
        self._saved.put_random_numbers()
        since_logged, loss = self._loss_so_far
        self._globalstep_last_logged -= since_logged
        self._tr_loss.copy_(loss)

    _loss_so_far: tuple[int, torch.Tensor]

    def counted(self) -> tuple[dict[str, Untyped], dict[str, torch.Tensor]]:
        """What has been counted and not been told yet: JSON and tensors."""
        plain = {"since_logged": self.state.global_step - self._globalstep_last_logged}
        return plain, {"loss_since_logged": self._tr_loss}

    def restore_counted(self, plain: dict[str, Untyped], tensors: dict[str, torch.Tensor]) -> None:
        self._loss_so_far = plain["since_logged"], tensors["loss_since_logged"]

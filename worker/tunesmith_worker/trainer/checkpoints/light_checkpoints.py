"""Which of a run's checkpoints to sample from stay in its directory."""

from __future__ import annotations

import shutil
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from tunesmith_schema import Recipe
from tunesmith_schema.retention import checkpoints_to_drop
from tunesmith_worker.rundir.paths import RunDirectory

Untyped = Any  # Any: transformers is not typed


class LightCheckpoints(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]  # untyped
    """A callback only for its state, which goes into resume points."""

    def __init__(self, run: RunDirectory, recipe: Recipe, *, forked: bool) -> None:
        self._run, self._recipe, self._forked = run, recipe, forked
        self.saved: dict[str, float | None] = {}
        """How bad each was, by step: see `selection_loss`."""

    def state(self) -> dict[str, Untyped]:
        return {"args": {}, "attributes": {"saved": self.saved}}

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if self._forked:
            self.saved = {}  # those of the job it comes from, which keeps them by its own limit

    def add(self, step: int, selection_loss: float | None) -> None:
        """One is whole on disk; what is beyond the recipe's limit goes."""
        self.saved[str(step)] = selection_loss
        values = {int(one): value for one, value in self.saved.items()}
        for old in checkpoints_to_drop(values, self._recipe):
            shutil.rmtree(self._run.checkpoint(old), ignore_errors=True)
            del self.saved[str(old)]

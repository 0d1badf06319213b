"""Removal of a run's old light checkpoints, which contain only weights and are used to generate
text."""

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
    """Removes light checkpoints beyond the recipe's limit.

    This class is a trainer callback, because resume points contain the state of callbacks.
    """

    def __init__(self, run: RunDirectory, recipe: Recipe, *, forked: bool) -> None:
        self._run, self._recipe, self._forked = run, recipe, forked
        self.saved: dict[str, float | None] = {}
        """`selection_loss` of each checkpoint; the keys are steps."""

    def state(self) -> dict[str, Untyped]:
        return {"args": {}, "attributes": {"saved": self.saved}}

    def on_train_begin(self, args: Untyped, state: Untyped, control: Untyped, **_: Untyped) -> None:
        if self._forked:
            self.saved = {}  # earlier checkpoints belong to the original job

    def add(self, step: int, selection_loss: float | None) -> None:
        """Record a saved checkpoint, and remove checkpoints beyond the recipe's limit."""
        self.saved[str(step)] = selection_loss
        values = {int(saved): value for saved, value in self.saved.items()}
        for old in checkpoints_to_drop(values, self._recipe):
            shutil.rmtree(self._run.checkpoint(old), ignore_errors=True)
            del self.saved[str(old)]

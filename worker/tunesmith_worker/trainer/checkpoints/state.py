"""The trainer's state at the end of a step: capture and restore.

Captured tensors share memory with the live tensors, so copy the captured tensors before training
continues.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers.trainer_callback import ExportableState

from tunesmith_schema import ErrorCode
from tunesmith_worker.rundir import resume_point as names
from tunesmith_worker.rundir.errors import RunError

from .optimizer_state import inner, optimizer_state, restore_optimizer, restore_scheduler
from .random_state import random_numbers, restore_random_numbers

Untyped = Any  # Any: transformers and TRL are not typed
Json = dict[str, Any]  # Any: JSON

_RENAMED_CALLBACKS = {"RolloutWarnings": "RolloutAlarms"}
"""Names of callback classes in resume points of earlier versions; the keys are the current
names."""


@dataclass(kw_only=True)
class ResumeState:
    """Content of a resume point's files, under the names of the files."""

    tensors: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Size of the tensors in bytes."""
        all_files = (tensor for file in self.tensors.values() for tensor in file.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in all_files)

    def copied(self) -> ResumeState:
        """Return a copy of the state in CPU memory."""
        return ResumeState(
            tensors={
                file: {name: t.detach().to("cpu", copy=True) for name, t in tensors.items()}
                for file, tensors in self.tensors.items()
            },
            texts=dict(self.texts),
        )


def trained_parameters(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return trained parameters under their names; a tied parameter appears once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def capture_state(trainer: Untyped) -> ResumeState:
    """Capture the state at the end of a step, after the step's metrics are logged."""
    trained = trained_parameters(trainer.model)
    name_of: dict[torch.Tensor, str] = {parameter: name for name, parameter in trained.items()}
    scheduler = trainer.lr_scheduler
    optimizer, moments = optimizer_state(inner(trainer.optimizer), name_of, scheduler)
    random, generators = random_numbers()
    counted, sums = trainer.state_dict()
    run_state = {"random": random, "counted": counted}
    return ResumeState(
        tensors={
            names.TRAINED: dict(trained),
            names.OPTIMIZER: moments,
            names.RUN_TENSORS: generators | sums,
        },
        texts={
            names.OPTIMIZER_JSON: json.dumps(optimizer),
            names.TRAINER_STATE: json.dumps(_trainer_state(trainer)),
            names.RUN_STATE: json.dumps(run_state),
        },
    )


def _trainer_state(trainer: Untyped) -> Json:
    state = dataclasses.asdict(trainer.state)
    # The log history would grow with the run, and metrics are already stored as events.
    return state | {"log_history": [], "stateful_callbacks": _callback_states(trainer)}


def _callback_states(trainer: Untyped) -> Json:
    callbacks = trainer.callback_handler.callbacks
    return {
        type(callback).__name__: callback.state()
        for callback in callbacks
        if isinstance(callback, ExportableState)
    }


class SavedState:
    """Content of a resume point; each file is read only when its content is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run_state: Json = self._json(names.RUN_STATE)

    def load_weights(self, model: torch.nn.Module) -> None:
        """Copy the saved weights into the model. Raises RunError if the saved tensors are not the
        tensors that the run trains."""
        saved, trained = load_file(self._folder / names.TRAINED), trained_parameters(model)
        _check_fit(saved, trained)
        with torch.no_grad():
            for name, parameter in trained.items():
                parameter.copy_(saved[name])

    def load_optimizer(self, trainer: Untyped, *, forked: bool) -> None:
        plain = self._json(names.OPTIMIZER_JSON)
        optimizer, trained = inner(trainer.optimizer), trained_parameters(trainer.model)
        name_of: dict[torch.Tensor, str] = {parameter: name for name, parameter in trained.items()}
        tensors = load_file(self._folder / names.OPTIMIZER)
        restore_optimizer(optimizer, name_of, plain, tensors)
        restore_scheduler(trainer.lr_scheduler, optimizer, plain["scheduler"], forked=forked)

    def load_random_numbers(self) -> None:
        tensors = load_file(self._folder / names.RUN_TENSORS)
        restore_random_numbers(self._run_state["random"], tensors)

    def load_counters(self, trainer: Untyped) -> None:
        """Load the trainer's counters, and the states of its callbacks."""
        trainer.load_state_dict(
            self._run_state["counted"], load_file(self._folder / names.RUN_TENSORS)
        )
        states = self._json(names.TRAINER_STATE)["stateful_callbacks"]
        for callback in trainer.callback_handler.callbacks:
            name = type(callback).__name__
            saved = states.get(name, states.get(_RENAMED_CALLBACKS.get(name)))
            if isinstance(callback, ExportableState) and saved is not None:
                for name, value in saved["attributes"].items():
                    setattr(callback, name, value)

    def _json(self, name: str) -> Json:
        content: Json = json.loads((self._folder / name).read_text(encoding="utf-8"))
        return content


def _check_fit(saved: dict[str, torch.Tensor], trained: dict[str, torch.nn.Parameter]) -> None:
    for name in sorted(saved.keys() | trained.keys()):
        before, now = _describe(saved.get(name)), _describe(trained.get(name))
        if before != now:
            raise RunError(
                ErrorCode.RESUME_MISMATCH,
                f"The resume point does not match the recipe: the tensor {name} is {before} in the "
                f"resume point, but {now} with this recipe.",
                hint="Restore the former values of recipe.tuning, recipe.lora, recipe.add_tokens "
                "and recipe.precision, or start a new job.",
                param="recipe",
            )


def _describe(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return "not trained"
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"

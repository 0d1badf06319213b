"""Models and files that the form offers, and facts about the chosen model and files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

from pydantic_core import from_json

from tunesmith_schema import FileObject, FilePurpose, MethodName, Model, WorkerState
from tunesmith_server.core.errors import NotFound
from tunesmith_server.portal import devices, view
from tunesmith_server.portal.devices import Devices
from tunesmith_server.portal.visit import Visit
from tunesmith_server.services.catalogue import model_list
from tunesmith_server.services.catalogue.model_list import Kind, ModelFilters
from tunesmith_server.services.data import files

from .request import Texts

_MOST_FILES = 200
_MOST_BASES = 200
_MOST_TUNED = 50


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Models and files to choose from, and the devices."""

    models: Sequence[Model]
    """Base models by name, then the newest models with full weights."""
    files: list[FileObject]
    """Newest data sets, and the data sets that are chosen in the form."""
    devices: Devices

    @property
    def bases(self) -> list[Model]:
        return [model for model in self.models if model.kind == "base"]

    def model(self, name: str) -> Model | None:
        return next((item for item in self.models if item.id == name), None)

    def facts(self, model: Model) -> str:
        """Return size, context and devices of a model as a text."""
        context = model.context_length
        parts = [
            "" if model.bytes is None else view.size(model.bytes),
            "" if context is None else f"context {context:,} tokens",
            self.trainable(model),
        ]
        return ", ".join(filter(None, parts))

    def trainable(self, model: Model) -> str:
        """Return a text that tells whether a worker can train a base model now; empty for a tuned
        model, which every worker can download."""
        if model.kind != "base":
            return ""
        holders = model.workers or []
        if not holders:
            return "no live worker has it"
        free = sum(
            lane.worker.id in holders and lane.worker.state == WorkerState.IDLE
            for lane in self.devices.lanes
        )
        return f"{free} of {len(holders)} worker{'' if len(holders) == 1 else 's'} free"

    def file(self, file_id: str) -> FileObject | None:
        return next((item for item in self.files if item.id == file_id), None)

    def usable_for(self, file: FileObject) -> list[str]:
        """Return the methods that can use a file; an empty result before the file has been
        validated."""
        found = file.validation
        return [name for name in get_args(MethodName) if found and not found.unusable_reason(name)]


def read(visit: Visit, texts: Texts) -> Choices:
    session = visit.session
    found = files.newest(session, FilePurpose.FINE_TUNE, _MOST_FILES)
    for name in ("training_file", "validation_file"):
        file_id = texts.get(name, "")
        if file_id and file_id not in [item.id for item in found]:
            with suppress(NotFound):
                found.append(files.to_wire(files.retrieve(session, file_id)))
    return Choices(
        models=[*_models(visit, "base", _MOST_BASES), *_models(visit, "full", _MOST_TUNED)],
        files=found,
        devices=devices.read(visit, waiting=1),
    )


def _models(visit: Visit, kind: Kind, limit: int) -> list[Model]:
    page = model_list.list_models(
        visit.session, visit.state.settings, after=None, limit=limit,
        filters=ModelFilters(kind=kind), serving=visit.state.inference.serving,
    )  # fmt: skip
    return [Model(**item) for item in from_json(page.content())["data"]]

"""Models and files that the form offers, and facts about the chosen model and files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

from tunesmith_schema import FileObject, FilePurpose, MethodName
from tunesmith_server.core.errors import NotFound
from tunesmith_server.portal import devices
from tunesmith_server.portal.devices import Devices
from tunesmith_server.portal.visit import Visit
from tunesmith_server.services.catalogue import base_models
from tunesmith_server.services.data import files

from .request import Texts

_MOST_FILES = 200


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Models and files to choose from, and the devices."""

    models: Mapping[str, list[str]]
    """Ids of the live workers that have each base model; empty for a model that only the server's
    host has."""
    files: list[FileObject]
    """Newest data sets, and the data sets that are chosen in the form."""
    devices: Devices

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
    loadable = base_models.on_workers(session)
    names = base_models.names(session, visit.state.settings)
    return Choices(
        models={name: loadable.get(name, []) for name in names},
        files=found,
        devices=devices.read(visit, waiting=1),
    )

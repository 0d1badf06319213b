"""Where a base model's name leads on this host. Does not load anything."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError

from .settings import WorkerSettings

_MOST_HEADER_BYTES = 100_000_000
"""safetensors' own bound."""


def names(settings: WorkerSettings) -> list[str]:
    """Folder names of the models below the allowed directories."""
    found = {
        entry.name
        for directory in settings.base_model_folders()
        if directory.is_dir()
        for entry in directory.iterdir()
        if (entry / "config.json").is_file()
    }
    return sorted(found)


def resolve(settings: WorkerSettings, name: str) -> str:
    """The folder that `name` means below an allowed directory, else `name` itself: a hub id."""
    for directory in settings.base_model_folders():
        # A direct child may be a link: who made it there allowed where it leads.
        if name == Path(name).name and (directory / name / "config.json").is_file():
            return str(directory / name)
        path: Path = (directory / name).resolve()
        if path.is_relative_to(directory) and (path / "config.json").is_file():
            return str(path)
    return name


def check_base_model(name: str, folder: Path, *, from_scratch: bool) -> None:
    """Raises RunError. `folder` as `base_models.resolve` gave it; a hub's id is left alone."""
    if not folder.is_dir():
        if folder.is_absolute() or "/" not in name:
            raise _gone(
                name, "no folder of that name is below this worker's TUNESMITH_MODEL_DIRS any more"
            )
        return
    if from_scratch:
        return
    weights = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _shards(name, index)
        if missing := [shard for shard in shards if not (folder / shard).is_file()]:
            raise _gone(
                name,
                f"{folder} lacks {len(missing)} of {len(shards)} weight files, the first being "
                f"{missing[0]}",
            )
    for file in weights:
        size, needed = file.stat().st_size, _size_by_header(file)
        if needed is None or size < needed:
            raise _cut_off(name, file, size, needed)


def _shards(name: str, index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _cut_off(name, index, index.stat().st_size, None) from error


def _size_by_header(file: Path) -> int | None:
    """Bytes that a safetensors file needs: 8 for the header's length N, N of JSON, then the
    tensors up to the largest of `data_offsets` (the format's README). None: no whole header."""
    with file.open("rb") as opened:
        head = opened.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MOST_HEADER_BYTES + 1
        if length > _MOST_HEADER_BYTES:
            return None
        try:
            header = json.loads(opened.read(length))
            ends = [of["data_offsets"][1] for key, of in header.items() if key != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
    return 8 + int(length) + max(ends, default=0)


def _gone(name: str, what: str) -> RunError:
    return RunError(
        ErrorCode.BASE_MODEL_GONE,
        f"Base model {name!r} is gone: {what}.",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Put it back, or start a worker that has it; the job then goes on by itself, or by "
        "`tunesmith jobs retry`.",
        param="model",
    )


def _cut_off(name: str, file: Path, size: int, needed: int | None) -> RunError:
    should = "has no whole header" if needed is None else f"should have {needed} by its header"
    return RunError(
        ErrorCode.MODEL_NOT_USABLE,
        f"Base model {name!r} is damaged: {file} has {size} bytes and {should}.",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Is it still being copied? Else copy it again; a job that failed over it can be "
        "taken up by `tunesmith jobs retry`.",
        param="model",
    )

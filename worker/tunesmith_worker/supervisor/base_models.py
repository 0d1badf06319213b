"""Find base models on this host and check that their files are complete.

The check reads only the headers of safetensors files, to find missing and truncated files. Weights
that do not match the model are found later, by the trainer.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tunesmith_schema import ErrorCategory, ErrorCode
from tunesmith_worker.rundir.errors import RunError

from .settings import WorkerSettings

_MOST_HEADER_BYTES = 100_000_000
"""Maximum header size in the safetensors format."""


def model_names(settings: WorkerSettings) -> list[str]:
    """Return the names of the model folders in TUNESMITH_MODEL_DIRS."""
    names = {
        entry.name
        for directory in settings.base_model_folders()
        if directory.is_dir()
        for entry in directory.iterdir()
        if (entry / "config.json").is_file()
    }
    return sorted(names)


def resolve(settings: WorkerSettings, name: str) -> str:
    """Return the folder of model `name`; if TUNESMITH_MODEL_DIRS has none, return `name` itself.

    A name without a folder counts as a Hugging Face id."""
    for directory in settings.base_model_folders():
        # A direct child may link to any folder, because the operator created the link.
        if name == Path(name).name and (directory / name / "config.json").is_file():
            return str(directory / name)
        path: Path = (directory / name).resolve()
        if path.is_relative_to(directory) and (path / "config.json").is_file():
            return str(path)
    return name


def check_base_model(name: str, folder: Path, *, from_scratch: bool) -> None:
    """Raise RunError if a base model is missing or damaged.

    `folder`: result of `resolve`. Hugging Face ids are not checked."""
    if not folder.is_dir():
        if folder.is_absolute() or "/" not in name:
            raise _missing(name, "this worker's TUNESMITH_MODEL_DIRS have no folder of that name")
        return
    if from_scratch:
        return
    weights = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = _shards(name, index)
        if missing := [shard for shard in shards if not (folder / shard).is_file()]:
            raise _missing(
                name,
                f"{folder} lacks {len(missing)} of {len(shards)} weight files, "
                f"such as {missing[0]}",
            )
    for file in weights:
        size, needed = file.stat().st_size, _size_by_header(file)
        if needed is None or size < needed:
            raise _damaged(name, file, size, needed)


def _shards(name: str, index: Path) -> list[str]:
    try:
        return sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _damaged(name, index, index.stat().st_size, None) from error


def _size_by_header(file: Path) -> int | None:
    """Return a safetensors file's size according to its header; None if the header is incomplete.

    The file has 8 bytes with the header's length N, N bytes of JSON, then the tensors. The largest
    of `data_offsets` is the end of the tensors (see the format's README).
    """
    with file.open("rb") as opened:
        head = opened.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MOST_HEADER_BYTES + 1
        if length > _MOST_HEADER_BYTES:
            return None
        try:
            header = json.loads(opened.read(length))
            ends = [
                entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
    return 8 + int(length) + max(ends, default=0)


def _missing(name: str, reason: str) -> RunError:
    return RunError(
        ErrorCode.BASE_MODEL_GONE,
        f"Base model {name!r} is missing: {reason}.",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Restore the model or start a worker that has it, then run `tunesmith jobs retry`.",
        param="model",
    )


def _damaged(name: str, file: Path, size: int, needed: int | None) -> RunError:
    expected = "no complete header" if needed is None else f"its header needs {needed}"
    return RunError(
        ErrorCode.MODEL_NOT_USABLE,
        f"Base model {name!r} is damaged: {file} has {size} bytes, {expected}.",
        category=ErrorCategory.INFRASTRUCTURE,
        hint="Copy the model again, then run `tunesmith jobs retry`.",
        param="model",
    )

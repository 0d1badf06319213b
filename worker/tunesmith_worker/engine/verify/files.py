"""Check a result's files without loading a model: checksums and the name of the base model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open

from tunesmith_schema.verification import VERIFICATION_FILE, Verification, VerifiedFile
from tunesmith_worker.engine.model.probe import Probe, checksum
from tunesmith_worker.rundir.paths import file_hash

from .compare import ResultMismatch

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def verified_files(folder: Path) -> dict[str, VerifiedFile]:
    """Return the size and the checksum of every file in a result's folder, except
    verification.json."""
    return {
        path.name: VerifiedFile(bytes=path.stat().st_size, sha256=file_hash(path))
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != VERIFICATION_FILE
    }


def check_files(folder: Path, verification: Verification) -> None:
    """Check that the folder contains all files that verification.json lists, unchanged. Other files
    are ignored."""
    for name, file in verification.files.items():
        path = folder / name
        if not path.is_file():
            raise ResultMismatch(f"{name} is missing")
        if (size := path.stat().st_size) != file.bytes:
            raise ResultMismatch(f"{name} has {size:,} bytes instead of {file.bytes:,}")
        if (found := file_hash(path)) != file.sha256:
            raise ResultMismatch(f"{name} has the sha256 {found} instead of {file.sha256}")


def read_probe(folder: Path) -> Probe:
    with explain_unreadable("probe.safetensors"):
        return Probe.read(folder)


def tensor_checksums(folder: Path) -> dict[str, str]:
    """Return the checksum of each tensor in the adapter's file."""
    with explain_unreadable(WEIGHTS), safe_open(folder / WEIGHTS, framework="pt") as file:
        return {name: checksum(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  # not a dict


def name_in_file(parameter: str) -> str:
    """Return the name of a trained parameter in the adapter's file.

    PEFT removes the adapter's name (`default`) and `modules_to_save` from the parameter's name."""
    return parameter.replace(".modules_to_save.default.", ".").replace(".default", "")


def base_name(folder: Path) -> str:
    """Return the base model's name in adapter_config.json."""
    with explain_unreadable(CONFIG):
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return str(config["base_model_name_or_path"])


def check_base_name(folder: Path, expected: str) -> None:
    if (name := base_name(folder)) != expected:
        raise ResultMismatch(
            f"{CONFIG} names the base model {name!r} instead of {expected!r}: plain PEFT would "
            "load the adapter on another model"
        )


@contextmanager
def explain_unreadable(name: str) -> Iterator[None]:
    """Convert errors of a damaged or missing file to ResultMismatch."""
    try:
        yield
    except FileNotFoundError as error:
        raise ResultMismatch(f"{name} is missing") from error
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ResultMismatch(f"{name} cannot be read: {error}") from error

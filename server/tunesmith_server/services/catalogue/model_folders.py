"""Facts about the base models on this host, read from their folders."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_MAX_CONFIG_BYTES = 1024 * 1024
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
"""Names that the context length can have in config.json; the name depends on the model family."""


@dataclass(frozen=True, kw_only=True)
class FolderFacts:
    """Facts about a base model; None for an unknown fact."""

    created: int = 0
    """Time at which the folder was created, Unix seconds; 0 if there is no folder."""
    bytes: int | None = None
    """Size of the weights in bytes."""
    context_length: int | None = None
    """Context length of the model in tokens."""


UNKNOWN = FolderFacts()


def read(folder: Path | None) -> FolderFacts:
    """Return the facts about the model in a folder. The files are read again if the folder has
    changed."""
    if folder is None:
        return UNKNOWN
    try:
        changed = folder.stat().st_mtime_ns, (folder / "config.json").stat().st_mtime_ns
    except OSError:
        return UNKNOWN
    return _read(folder, changed)


@lru_cache(maxsize=1024)
def _read(folder: Path, changed: tuple[int, int]) -> FolderFacts:
    return FolderFacts(
        created=changed[0] // 10**9,
        bytes=_weight_bytes(folder),
        context_length=_context_length(folder / "config.json"),
    )


def _weight_bytes(folder: Path) -> int | None:
    """Return the total size of the files `*.safetensors`, or of `*.bin` if there are none."""
    for pattern in ("*.safetensors", "*.bin"):
        with suppress(OSError):
            if sizes := [path.stat().st_size for path in folder.glob(pattern)]:
                return sum(sizes)
    return None


def _context_length(path: Path) -> int | None:
    with suppress(OSError, ValueError, RecursionError):
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            return None
        config = json.loads(path.read_bytes())
        parts = [config, config.get("text_config")] if isinstance(config, dict) else []
        for part in parts:
            found = [part.get(name) for name in _LENGTHS] if isinstance(part, dict) else []
            for value in found:
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None

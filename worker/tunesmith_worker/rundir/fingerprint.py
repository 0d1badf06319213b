"""Fingerprint of a base model's files. Imports no torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .paths import file_hash

_WHOLE = 64 * 2**20
"""Maximum size in bytes of a file that is hashed completely."""
_BLOCK = 64 * 1024
_BLOCKS = 256
"""Number of evenly spaced blocks to hash in a larger file. Training the weights changes the
hash, because training changes every block."""
_SUFFIXES = frozenset({".json", ".safetensors", ".jinja", ".model", ".txt"})


def fingerprint(model_path: str) -> str:
    """Return a hash of a model folder's file names, sizes and content (sampled in large files).

    For a model on the Hugging Face Hub, return its name.
    """
    folder, digest = Path(model_path), hashlib.sha256()
    if not folder.is_dir():
        return f"hub:{model_path}"
    for path in sorted(folder.iterdir()):
        if path.suffix in _SUFFIXES and path.is_file():
            size = path.stat().st_size
            digest.update(f"{path.name}:{size}:".encode())
            digest.update(file_hash(path).encode() if size <= _WHOLE else _sampled(path, size))
    return digest.hexdigest()


def _sampled(path: Path, size: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(_BLOCKS):
            file.seek((size - _BLOCK) * number // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest().encode()

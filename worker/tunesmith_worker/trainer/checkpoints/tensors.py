"""Writing of safetensors files in chunks, with a hash computed during the write.

`safetensors.torch.save_file` first copies all tensors to bytes. For a full training state, the copy
by `save_file` doubles the use of host memory. `save_file` computes no hash, so a hash would need
another read of the file. Format: https://huggingface.co/docs/safetensors (header length in 8 bytes,
JSON header, tensors).
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: NumPy arrays are not typed as buffers

import torch

from tunesmith_worker.rundir.resume_point import FileEntry

_PIECE = 1 << 24
"""Bytes per chunk to copy from a device, hash and write."""
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> FileEntry:
    """Write tensors from any device. Raises KeyError for a dtype that safetensors lacks."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        shape, offsets = list(tensor.shape), [start, end]
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors to 8 bytes
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in (struct.pack("<Q", len(text)), text):
            digest.update(piece)
            file.write(piece)
        for tensor in tensors.values():
            flat = tensor.detach().reshape(-1)
            step = max(1, _PIECE // flat.element_size())
            for at in range(0, flat.numel(), step):
                part = flat[at : at + step].cpu().contiguous()
                data: Any = part.view(torch.uint8).numpy()  # a buffer, not a copy
                digest.update(data)
                file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(bytes=8 + len(text) + end, sha256=digest.hexdigest())


def write_text(path: Path, text: str) -> FileEntry:
    content = text.encode()
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

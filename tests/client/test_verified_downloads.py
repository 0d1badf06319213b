"""A download has the files that the trainer read back, or it is refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tunesmith import DownloadError

from .fakes import client_of

FILES = {
    "adapter_config.json": b"{}",
    "adapter_model.safetensors": b"weights",
    "probe.safetensors": b"logits",
}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def verification(files: dict[str, bytes]) -> bytes:
    document = {
        "kind": "lora",
        "step": 9,
        "base_model": "tiny",
        "base_fingerprint": None,
        "dtype": "fp32",
        "quantization": "none",
        "vocabulary": 384,
        "arithmetic": "fp32",
        "probe": [[1, 2, 3]],
        "max_difference": 0.0,
        "tolerance": 1e-6,
        "rule": "RMS(logits)",
        "made_with": {},
        "a_field_of_a_newer_release": 1,
        "files": {
            name: {"bytes": len(content), "sha256": sha256(content)}
            for name, content in files.items()
        },
    }
    return json.dumps(document).encode()


class Store:
    """A server of one adapter."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1/adapters/adp-1")
        if path:
            return httpx.Response(200, content=self._files[path.removeprefix("/content/")])
        files: list[dict[str, Any]] = [
            {"name": name, "bytes": len(content), "sha256": sha256(content)}
            for name, content in self._files.items()
        ]
        body = {
            **{"id": "adp-1", "created_at": 1, "job_id": "ftjob-1", "model": "ft:tiny:x"},
            **{"base_model": "tiny", "kind": "lora", "step": 9, "bytes": 1, "files": files},
        }
        return httpx.Response(200, json=body)


def test_the_files_that_the_trainer_verified_are_downloaded(tmp_path: Path) -> None:
    store = Store({**FILES, "verification.json": verification(FILES)})
    client = client_of(store)
    folder = client.adapters.download("adp-1", tmp_path / "adapter")
    assert len(list(folder.iterdir())) == 4
    assert client.adapters.retrieve("adp-1").verified is None  # an older server does not tell


@pytest.mark.parametrize(
    ("verified", "message"),
    [
        (FILES | {"probe.safetensors": b"others"}, "probe.safetensors of adp-1 has the sha256"),
        (FILES | {"lost.json": b""}, "lost.json of adp-1 is only in verification.json"),
        ({"adapter_config.json": b"{}"}, "adapter_model.safetensors of adp-1 is only in the down"),
        (None, "verification.json of adp-1 has 1 wrong fields"),
    ],
)
def test_other_files_than_the_verified_ones_are_refused(
    tmp_path: Path, verified: dict[str, bytes] | None, message: str
) -> None:
    content = b"[]" if verified is None else verification(verified)
    client = client_of(Store({**FILES, "verification.json": content}))
    with pytest.raises(DownloadError, match=message):
        client.adapters.download("adp-1", tmp_path / "adapter")
    assert list(tmp_path.iterdir()) == []

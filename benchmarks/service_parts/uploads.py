"""A large upload, both ways: how much memory the API and the SDK need for it, and is it whole."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx

import tunesmith

from .installation import Installation, installation
from .process_use import watched

_LINE_BYTES = 4096
LIMIT_BYTES = 8 * 1024**3
"""Of one request: the default would refuse 1 GiB."""

Way = Callable[[str, str, Path], str]
"""Takes the API's URL, a key and a path; gives the sha256 at the other end."""


def measure(folder: Path) -> dict[str, Any]:
    """1 GiB in one request, 1 GiB by the SDK in parts, and back. Any: JSON."""
    path = folder / "rows.jsonl"
    sha256 = write_rows(path, 2**30)
    figures: dict[str, Any] = {"bytes": path.stat().st_size}
    for way in (post_multipart, send_by_sdk, download):
        # A service each: content that is stored already, or memory that grew, would flatter the
        # next one.
        below = folder / way.__name__
        below.mkdir()
        with installation(below, MAX_FILE_BYTES=str(LIMIT_BYTES)) as service:
            if way is download:
                send_by_sdk(service.url, service.api_key, path)
            figures[way.__name__] = measure_on(service, way, path, sha256)
    return figures


def measure_on(service: Installation, way: Way, path: Path, sha256: str) -> dict[str, Any]:
    """Memory in MB and time of one transfer; RuntimeError when what arrived has another sha256."""
    began = time.monotonic()
    with watched(service.api_pid) as api, ProcessPoolExecutor(1, get_context("spawn")) as client:
        got, client_growth = client.submit(_watched_here, way, service, path).result()
    if got != sha256:
        raise RuntimeError(f"{way.__name__}: sha256 {got} instead of {sha256}")
    return {
        "api_rss_before_mb": api.rss_before_mb,
        "api_rss_growth_mb": api.rss_growth_mb,
        "api_cpu_seconds": api.cpu_seconds,
        "client_rss_growth_mb": client_growth,
        "seconds": round(time.monotonic() - began, 1),
        "sha256_agrees": True,
    }


def _watched_here(way: Way, service: Installation, path: Path) -> tuple[str, float]:
    """What `way` gives, and by how many MB this fresh process grew."""
    with watched(os.getpid()) as use:
        got = way(service.url, service.api_key, path)
    return got, use.rss_growth_mb


def post_multipart(url: str, key: str, path: Path) -> str:
    """One POST /v1/files; gives the sha256 that the server found."""
    headers = {"authorization": f"Bearer {key}"}
    with path.open("rb") as content:
        reply = httpx.post(
            f"{url}/v1/files",
            headers=headers,
            data={"purpose": "evals"},
            files={"file": ("rows.jsonl", content)},
            timeout=600,
            trust_env=False,
        )
    return str(reply.raise_for_status().json()["sha256"])


def send_by_sdk(url: str, key: str, path: Path) -> str:
    """`client.files.create`: parts of 16 MiB; gives the sha256 that the server found."""
    with tunesmith.Client(f"{url}/v1", key, timeout=600) as client:
        return str(client.files.create(file=path, purpose="evals").sha256)


def download(url: str, key: str, path: Path) -> str:
    """The newest file back; gives the sha256 of what arrived."""
    copy = path.with_name("copy.jsonl")
    with tunesmith.Client(f"{url}/v1", key, timeout=600) as client:
        client.files.download(client.files.list(limit=1).data[0].id, copy)
    with copy.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    copy.unlink()
    return digest


def write_rows(path: Path, size: int) -> str:
    """JSON lines, each different, `size` bytes or a line more; gives their sha256."""
    digest, written, number = hashlib.sha256(), 0, 0
    with path.open("wb") as file:
        while written < size:
            answer = os.urandom((_LINE_BYTES - 80) // 2).hex()
            line = json.dumps({"prompt": f"row {number}", "completion": answer}).encode() + b"\n"
            digest.update(line)
            written += file.write(line)
            number += 1
    return digest.hexdigest()
